# dlab_emulate_cuda(TARGET SOURCE.cu ... HEADER.cuh ...)
#
# Adds CUDA sources to a library or program, compiled by the C++ compiler for the emulator in this folder, and the emulator itself.
# Headers with launches or __shared__ variables in them are named too, so that they are translated as well.
# Reports name the sources by their path below the current source directory.
#
# With -fsanitize=address or -fsanitize=thread in CMAKE_CXX_FLAGS the accesses are left to that sanitizer: the emulator then checks
# copies, barriers and streams only.
set(EMU_FOLDER ${CMAKE_CURRENT_LIST_DIR})
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(Threads REQUIRED)

file(GLOB EMU_SOURCES CONFIGURE_DEPENDS ${EMU_FOLDER}/*.cpp)
if(NOT TARGET dlab_emulator)
  add_library(dlab_emulator OBJECT ${EMU_SOURCES})
  target_compile_features(dlab_emulator PUBLIC cxx_std_17)
  set_target_properties(dlab_emulator PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  target_compile_options(dlab_emulator PRIVATE -O2 -fno-strict-aliasing)
  target_compile_definitions(dlab_emulator PRIVATE "EMU_BUILD_ROOT=\"${CMAKE_BINARY_DIR}/\"")
endif()

function(dlab_emulate_cuda target)
  set(generated "")
  foreach(source IN LISTS ARGN)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${path})
    if(name MATCHES "^\\.\\./([^.].*)")  # from a folder beside it
      set(name ${CMAKE_MATCH_1})
    elseif(name MATCHES "^\\.\\.")  # from elsewhere
      get_filename_component(name ${path} NAME)
    endif()
    get_filename_component(extension ${name} LAST_EXT)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_emulated/${name})
    if(extension STREQUAL ".cu")
      string(APPEND out .cpp)
    endif()
    get_filename_component(folder ${out} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${out}
      COMMAND ${Python3_EXECUTABLE} ${EMU_FOLDER}/translate.py ${path} --name ${name} --out ${out}
      DEPENDS ${path} ${EMU_FOLDER}/translate.py
      COMMENT "Translating ${name} for the emulator")
    list(APPEND generated ${out})
  endforeach()
  set(options -O1 -g1 -ffp-contract=off -fno-strict-aliasing -ffile-prefix-map=${CMAKE_CURRENT_BINARY_DIR}=/emulated
    -fdebug-prefix-map=${CMAKE_CURRENT_BINARY_DIR}=/emulated -Wno-unknown-pragmas)
  if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize=[a-z,]*(address|thread)")
    list(APPEND options -fsanitize=thread)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      list(APPEND options --param=tsan-instrument-func-entry-exit=0)
    else()
      list(APPEND options SHELL:-mllvm\ -tsan-instrument-func-entry-exit=0)
    endif()
  endif()
  set_source_files_properties(${generated} PROPERTIES COMPILE_OPTIONS "${options}")
  # The objects wait for the translated headers.
  add_custom_target(${target}_translated DEPENDS ${generated})
  add_dependencies(${target} ${target}_translated)
  target_sources(${target} PRIVATE ${generated} $<TARGET_OBJECTS:dlab_emulator>)
  target_include_directories(${target} BEFORE PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_emulated ${EMU_FOLDER}/include ${EMU_FOLDER} ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

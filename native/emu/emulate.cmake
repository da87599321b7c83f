# dlab_emulate_cuda(TARGET SOURCE.cu ... HEADER.cuh ...)
# dlab_emulate_metal(TARGET SOURCE.metal ... HOST.cpp ...)
# dlab_emulate_host(OBJECTS HOST.cpp ...)
#
# Adds CUDA or Metal sources to a library or program, compiled by the C++ compiler for the emulator in this folder, and the emulator itself.
# CUDA headers with launches or __shared__ variables in them are named too, so that they are translated as well; headers that a .metal
# source includes are found below the current source directory. Host code that is named here is watched where it touches device or
# pinned memory.
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
  # It stands in for a sanitizer's runtime; a compiler that was told to sanitise knows those functions as its own.
  set_source_files_properties(${EMU_FOLDER}/hooks.cpp PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()

# The name of a source in reports: its path below the current source directory, or below the folder above.
function(_dlab_emulated_name result path)
  file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${path})
  if(name MATCHES "^\\.\\./([^.].*)")
    set(name ${CMAKE_MATCH_1})
  elseif(name MATCHES "^\\.\\.")
    get_filename_component(name ${path} NAME)
  endif()
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# Translates each source, and compiles what comes out into the target. header: what CUDA and host sources include first.
function(_dlab_emulate target header)
  set(generated "")
  file(GLOB metal_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  foreach(source IN LISTS ARGN)
    get_filename_component(path ${source} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    _dlab_emulated_name(name ${path})
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_emulated/${name})
    if(name MATCHES "\\.(cu|metal)$")
      string(APPEND out .cpp)
    endif()
    get_filename_component(folder ${out} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    if(name MATCHES "\\.metal$")
      set(command -m emu.translate_metal ${path} --root ${CMAKE_CURRENT_SOURCE_DIR} --compiler ${CMAKE_CXX_COMPILER})
      set(needs ${EMU_FOLDER}/translate_metal.py ${metal_headers})
    else()
      set(command ${EMU_FOLDER}/translate.py ${path} --name ${name} --header ${header})
      set(needs "")
    endif()
    add_custom_command(
      OUTPUT ${out}
      COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${EMU_FOLDER}/.. ${Python3_EXECUTABLE} ${command} --out ${out}
      DEPENDS ${path} ${EMU_FOLDER}/translate.py ${needs}
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
  target_sources(${target} PRIVATE ${generated})
  target_include_directories(${target} BEFORE PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_emulated ${EMU_FOLDER}/include ${EMU_FOLDER} ${CMAKE_CURRENT_SOURCE_DIR})
endfunction()

function(_dlab_add_emulator target)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:dlab_emulator>)
  target_link_libraries(${target} PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
endfunction()

function(dlab_emulate_cuda target)
  _dlab_emulate(${target} cuda_emu.hpp ${ARGN})
  _dlab_add_emulator(${target})
endfunction()

function(dlab_emulate_metal target)
  _dlab_emulate(${target} language.hpp ${ARGN})
  _dlab_add_emulator(${target})
endfunction()

# Host code alone, watched like that beside kernels, as objects for several libraries.
function(dlab_emulate_host target)
  _dlab_emulate(${target} language.hpp ${ARGN})
endfunction()

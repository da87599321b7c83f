# What every library for a device is made of beside its kernels: the host's part (this folder), and from the CPU backend checks,
# configuration, entry points, bookkeeping and the decoding of weight vectors.
#
# dlab_add_device_backend(TARGET): the library with the CPU backend's part. DLAB_GPU_SOURCES: the host's part, to be compiled as the
# backend wants it; dlab_gpu: its objects for the emulated backends.
file(GLOB DLAB_GPU_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/gpu/*.cpp)
set(DLAB_GPU_INCLUDES ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/cpu)

if(NOT TARGET dlab_device_shared)
  set(shared apply.cpp apply_choices.cpp apply_experts.cpp apply_sequences.cpp apply_streams.cpp apply_tables.cpp checks.cpp config.cpp
    context.cpp drafter_weights.cpp dumping.cpp entry_drafter.cpp entry_handshake.cpp entry_ops.cpp held_rows.cpp host_ops.cpp pool.cpp)
  list(TRANSFORM shared PREPEND ${PROJECT_SOURCE_DIR}/cpu/)
  add_library(dlab_device_shared OBJECT EXCLUDE_FROM_ALL ${shared})
  target_include_directories(dlab_device_shared PRIVATE ${DLAB_GPU_INCLUDES})
endif()

if(DLAB_EMULATE)
  include(${PROJECT_SOURCE_DIR}/emu/emulate.cmake)
  if(NOT TARGET dlab_gpu)
    add_library(dlab_gpu OBJECT)
    target_include_directories(dlab_gpu PRIVATE ${DLAB_GPU_INCLUDES})
    dlab_emulate_host(dlab_gpu ${DLAB_GPU_SOURCES})
  endif()
endif()

function(dlab_add_device_backend target)
  add_library(${target} SHARED $<TARGET_OBJECTS:dlab_device_shared> $<TARGET_OBJECTS:dlab_cpu_baseline>)
  target_include_directories(${target} PRIVATE ${DLAB_GPU_INCLUDES} ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE Threads::Threads)
  install(TARGETS ${target} LIBRARY DESTINATION native/lib)
endfunction()

# Another library of the objects of an emulated backend, without those of the files that lie in the folder as well; sets DLAB_CHANGED to
# these files, which are for the caller to add.
function(dlab_add_changed_backend target backend folder)
  file(GLOB changed CONFIGURE_DEPENDS ${folder}/*.cu ${folder}/*.metal ${folder}/*.cpp)
  set(names "")
  foreach(path IN LISTS changed)
    get_filename_component(name ${path} NAME)
    string(REPLACE "." "[.]" name ${name})
    list(APPEND names ${name})
  endforeach()
  list(JOIN names "|" names)
  add_library(${target} SHARED $<TARGET_OBJECTS:dlab_device_shared> $<TARGET_OBJECTS:dlab_cpu_baseline>
    "$<FILTER:$<TARGET_OBJECTS:${backend}>;$<TARGET_OBJECTS:dlab_gpu>,EXCLUDE,/(${names})[.]>")
  target_include_directories(${target} PRIVATE $<TARGET_PROPERTY:${backend},INCLUDE_DIRECTORIES>)
  set(DLAB_CHANGED ${changed} PARENT_SCOPE)
endfunction()

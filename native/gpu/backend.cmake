# What every library for a device is made of beside its kernels: the host's part (this folder), and from the CPU backend checks,
# configuration, entry points, bookkeeping and the decoding of weight vectors.
#
# dlab_add_device_backend(TARGET): the library with the CPU backend's part. DLAB_GPU_SOURCES: the host's part, to be compiled as the
# backend wants it.
file(GLOB DLAB_GPU_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/gpu/*.cpp)

function(dlab_add_device_backend target)
  set(shared apply.cpp apply_choices.cpp apply_experts.cpp apply_sequences.cpp apply_streams.cpp apply_tables.cpp checks.cpp config.cpp
    context.cpp drafter_weights.cpp dumping.cpp entry_drafter.cpp entry_handshake.cpp entry_ops.cpp held_rows.cpp host_ops.cpp pool.cpp)
  list(TRANSFORM shared PREPEND ${PROJECT_SOURCE_DIR}/cpu/)
  add_library(${target} SHARED ${shared} $<TARGET_OBJECTS:dlab_cpu_baseline>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include ${CMAKE_CURRENT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/cpu)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  install(TARGETS ${target} LIBRARY DESTINATION native/lib)
endfunction()

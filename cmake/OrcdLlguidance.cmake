# The imported target `llguidance`: the Rust library of constraints and its C header, in
# ${llguidance_folder}. Ninja builds it beside the C++ files and begins with it, because it takes long
# and only links need it.
set(llguidance_folder ${CMAKE_BINARY_DIR}/llguidance)
set(llguidance_crate ${CMAKE_SOURCE_DIR}/tools/llguidance)
file(GLOB llguidance_sources CONFIGURE_DEPENDS ${llguidance_crate}/src/*.rs)
add_custom_command(
  OUTPUT ${llguidance_folder}/liborcd_llguidance.a ${llguidance_folder}/llguidance.h
  COMMAND ${CMAKE_SOURCE_DIR}/tools/fetch-llguidance --into ${llguidance_folder}
  DEPENDS ${CMAKE_SOURCE_DIR}/tools/fetch-llguidance
          ${llguidance_crate}/Cargo.toml ${llguidance_crate}/Cargo.lock ${llguidance_sources}
  COMMENT "Building llguidance" VERBATIM)
add_custom_target(llguidance_files DEPENDS ${llguidance_folder}/liborcd_llguidance.a)

# The library is known to links by its path. If they depended on llguidance_files, every target that
# links it would begin to compile only then.
file(MAKE_DIRECTORY ${llguidance_folder})
add_library(llguidance STATIC IMPORTED GLOBAL)
set_target_properties(llguidance PROPERTIES
  IMPORTED_LOCATION ${llguidance_folder}/liborcd_llguidance.a
  INTERFACE_INCLUDE_DIRECTORIES ${llguidance_folder}
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")

# orcd_unity(TARGET): with ORCD_UNITY ON, or TESTS if the target is a test, compiles the files of a
# room in batches of sixteen, because headers take most of the compiler's time.
#
# Two files that define the same name, for example in unnamed namespaces, cannot be compiled
# together, and go into different batches. Names are found by the starts of lines, and parameters are
# ignored. If the compiler still finds a name twice, a line in the room's CMakeLists.txt keeps the
# file apart:
#   set_source_files_properties(x.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
function(orcd_unity target)
  if(ORCD_UNITY AND (NOT ORCD_UNITY STREQUAL "TESTS" OR target MATCHES "_test$"))
    # Deferred to the end of the folder's CMakeLists.txt, when the options of its files are known.
    cmake_language(EVAL CODE "cmake_language(DEFER CALL orcd_make_batches ${target})")
  endif()
endfunction()

# CMake's own unity builds use absolute paths (relocatable ones came with 3.29), so ccache could not
# share results between checkouts.
function(orcd_make_batches target)
  get_target_property(files ${target} SOURCES)
  list(FILTER files INCLUDE REGEX "\\.cc$")
  set(batches 0)
  foreach(file ${files})
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    get_source_file_property(options ${file} COMPILE_OPTIONS)
    get_source_file_property(skip ${file} SKIP_UNITY_BUILD_INCLUSION)
    if(options OR skip)
      continue()
    endif()
    orcd_names_defined(${file} names)
    # The first batch that has room and defines none of these names; the last one is empty.
    foreach(batch RANGE ${batches})
      list(LENGTH files_${batch} count)
      set(new ${names})
      list(REMOVE_ITEM new "" ${names_${batch}})
      if(count LESS 16 AND "${new}" STREQUAL "${names}")
        set(chosen ${batch})
        break()
      endif()
    endforeach()
    list(APPEND files_${chosen} ${file})
    list(APPEND names_${chosen} ${names})
    if(chosen EQUAL batches)
      math(EXPR batches "${batches} + 1")
    endif()
  endforeach()
  foreach(batch RANGE ${batches})
    if(files_${batch})
      orcd_write_batch(${target} ${batch} ${files_${batch}})
    endif()
  endforeach()
endfunction()

function(orcd_write_batch target number)
  set(text)
  foreach(file ${ARGN})
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE relative)
    string(APPEND text "#include \"${relative}\"\n")
    set_source_files_properties(${file} PROPERTIES HEADER_FILE_ONLY ON)
  endforeach()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_unity_${number}.cc)
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
  target_sources(${target} PRIVATE ${file})
endfunction()

# Sets `names` to the types, constants and functions that a file defines outside of classes.
# Namespaces are not indented.
function(orcd_names_defined file names)
  set(found)
  file(STRINGS ${file} lines REGEX "^[A-Za-z]")
  foreach(line IN LISTS lines)
    if(line MATCHES "^(TEST|TYPED_TEST|INSTANTIATE|using [a-zA-Z:]+;|namespace |return )")
      continue()
    endif()
    if(line MATCHES "^(struct|class|enum class|enum|using) ([A-Za-z0-9_]+)" AND NOT line MATCHES ";$"
       OR line MATCHES "^(using) ([A-Za-z0-9_]+) ="
       OR line MATCHES "^(MATCHER[_P0-9]*)\\(([A-Za-z0-9_]+)"
       OR line MATCHES "^([^(=]*[ *&])([A-Za-z0-9_]+)(\\(| =|\\{|\\[|;)")
      list(APPEND found ${CMAKE_MATCH_2})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${names} "${found}" PARENT_SCOPE)
endfunction()

# orcd_unity(TARGET): where ORCD_UNITY is on, the compiler gets the files of a room by eights, as
# headers take it most of its time: a third of the CPU seconds under sanitizers.
#
# Two files that define one name, in unnamed namespaces say, cannot be compiled together. The later
# one is kept apart here, by what stands at the start of a line; a name that differs only in its
# parameters counts as well. Where the compiler still finds two of a name, the room's CMakeLists.txt
# keeps the file apart, before it makes the room:
#   set_source_files_properties(x.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
function(orcd_unity target)
  if(NOT ORCD_UNITY)
    return()
  endif()
  get_target_property(files ${target} SOURCES)
  list(FILTER files INCLUDE REGEX "\\.cc$")
  set(seen)
  foreach(file ${files})
    orcd_names_defined(${file} names)
    set(apart OFF)
    foreach(name ${names})
      if(name IN_LIST seen)
        set(apart ON)
      endif()
    endforeach()
    if(apart)
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    else()
      list(APPEND seen ${names})
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# The names of types, constants and functions that a file defines outside of classes: namespaces are
# not indented.
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

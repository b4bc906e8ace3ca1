# A room is a folder of sources whose names tell their purpose: x.cc joins the room's library,
# x_test.cc its test binary. Every room is compiled with the same warnings, as errors.
#
#   orcd_room(NAME [FOLDERS folder…] [WITHOUT pattern] DEPS target… [TEST_DEPS target…])
#
# makes the library NAME and, if the folder has tests, the test NAME_test. Files of FOLDERS below it
# belong to both. Files whose names begin with WITHOUT, a regular expression, belong to neither.
function(orcd_room name)
  cmake_parse_arguments(ARG "" "WITHOUT" "FOLDERS;DEPS;TEST_DEPS" ${ARGN})
  list(TRANSFORM ARG_FOLDERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(PREPEND ARG_FOLDERS ${CMAKE_CURRENT_SOURCE_DIR})
  list(TRANSFORM ARG_FOLDERS APPEND /*.cc OUTPUT_VARIABLE source_globs)
  list(TRANSFORM ARG_FOLDERS APPEND /*.h OUTPUT_VARIABLE header_globs)
  list(TRANSFORM ARG_FOLDERS APPEND /*_test.cc OUTPUT_VARIABLE test_globs)
  file(GLOB sources CONFIGURE_DEPENDS ${source_globs})
  file(GLOB headers CONFIGURE_DEPENDS ${header_globs})
  file(GLOB tests CONFIGURE_DEPENDS ${test_globs})
  list(FILTER sources EXCLUDE REGEX "[/_](test|fuzz|main|bench)\\.cc$")
  if(ARG_WITHOUT)
    foreach(files sources headers tests)
      list(FILTER ${files} EXCLUDE REGEX "/${ARG_WITHOUT}[^/]*$")
    endforeach()
  endif()

  if(sources)
    add_library(${name} STATIC ${sources} ${headers})
    set(visibility PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(${name} ${visibility} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} ${visibility} ${ARG_DEPS} Threads::Threads)
  if(sources)
    orcd_warnings(${name})
    orcd_unity(${name})
    if(ORCD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang"
       AND CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/(worker/api|tools)/")
      # Tests spend no time in these rooms, and Clang takes half the time for them.
      target_compile_options(${name} PRIVATE -O0)
    endif()
  endif()

  set(has_tests ${ORCD_BUILD_TESTS})
  if(ORCD_SANITIZE STREQUAL "thread")
    orcd_uses_threads(has_tests ${sources} ${headers} ${tests})
  endif()
  if(has_tests AND tests)
    add_executable(${name}_test ${tests})
    orcd_warnings(${name}_test)
    orcd_compile_fast(${name}_test)
    orcd_unity(${name}_test)
    target_link_libraries(${name}_test PRIVATE ${name} ${ARG_TEST_DEPS} GTest::gmock GTest::gtest_main)
    add_test(NAME ${name}_test COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  endif()
endfunction()

# orcd_uses_threads(RESULT file…): whether a file names a thread or anything that threads share. The
# thread sanitizer would find nothing in the tests of other rooms.
function(orcd_uses_threads result)
  set(${result} OFF PARENT_SCOPE)
  foreach(file ${ARGN})
    file(STRINGS ${file} lines LIMIT_COUNT 1
      REGEX "std::(jthread|thread|mutex|shared_mutex|atomic|condition_variable|call_once|async)|thread_local")
    if(lines)
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# orcd_program(NAME SOURCE DEPS target…): an executable from one file that composes libraries.
function(orcd_program name source)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  add_executable(${name} ${source})
  orcd_warnings(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()

# For tests and command lines. GCC takes a third less time at -O1 and half at -O0, which is too slow
# for the tests of cuda/ and runtime/, because these compute. Under a sanitizer Clang takes less than
# half at -O0, and reports name the functions of tests without their lines.
function(orcd_compile_fast target)
  if(ORCD_SANITIZE)
    target_compile_options(${target} PRIVATE -O0 -g0)
  elseif(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/(cuda|runtime)(/|$)")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

function(orcd_warnings target)
  # GCC 12 falsely reports overlap in `"literal" + std::string` (its bug 105651), and under a
  # sanitizer uninitialised values in the standard library's moves (its manual: -fsanitize gives
  # false positives).
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Werror $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
  if(ORCD_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  endif()
endfunction()

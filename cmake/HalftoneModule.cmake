# halftone_options(target): what every target of ours is compiled with.
function(halftone_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF
                        POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  # No contraction: a fused multiply-add would round once where the reference rounds twice.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Werror
                              -Wno-missing-field-initializers -ffp-contract=off>
    # g++ 12 warns of overlapping copies inside std::string that cannot happen.
    $<$<CXX_COMPILER_ID:GNU>:$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>>
    # Several files compiled as one: what one file names, another may use for something else.
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wno-shadow
        $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>>
    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Werror=all-warnings -Xcompiler=-Wall,-Wextra>)
  if(HALFTONE_SANITIZE)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HALFTONE_SANITIZE} -fno-sanitize-recover=all
                                -fno-omit-frame-pointer>)
    target_link_options(${target} PRIVATE -fsanitize=${HALFTONE_SANITIZE})
  endif()
endfunction()

# halftone_module(name SOURCES ... DEPENDS ...): one layer, as library halftone_<name>.
# DEPENDS names other modules or imported targets.
function(halftone_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(halftone_${name} STATIC ${ARG_SOURCES})
  halftone_options(halftone_${name})
  foreach(dependency ${ARG_DEPENDS})
    if(TARGET halftone_${dependency})
      set(dependency halftone_${dependency})
    endif()
    target_link_libraries(halftone_${name} PUBLIC ${dependency})
  endforeach()
endfunction()

# halftone_test(name SOURCES ... DEPENDS ...): one test executable per module.
function(halftone_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  halftone_options(${name}_test)
  # What is tested is optimized; what tests it need not be, and compiles in two thirds of the time.
  target_compile_options(${name}_test PRIVATE
    $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>
    $<$<AND:$<CONFIG:RelWithDebInfo>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
  target_compile_definitions(${name}_test PRIVATE
    HALFTONE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  target_link_libraries(${name}_test PRIVATE GTest::gtest_main GTest::gmock ${ARG_DEPENDS})
  add_test(NAME ${name} COMMAND ${name}_test)
  # Tests share the cores: threads that spin while they wait would keep each other from working.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT GOMP_SPINCOUNT=2000)
endfunction()

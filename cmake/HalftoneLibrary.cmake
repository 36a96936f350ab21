# libhalftone.so and libhalftone.a, their headers, and how CMake and pkg-config find them. The border
# is C (halftone/halftone_c.h; halftone/halftone.h is on top of it, inside the programs that use it),
# so nothing else is exported and the layers stay free to change.
include(CMakePackageConfigHelpers)

# Counts changes that break programs: see "What stays" in docs/library.md.
set(HALFTONE_SOVERSION 0)

# Of the layers, what capi reaches.
add_library(halftone_shared SHARED $<TARGET_OBJECTS:halftone_capi>)
target_link_libraries(halftone_shared PRIVATE halftone_capi)
target_link_options(halftone_shared PRIVATE
  LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/halftone.map)
set_target_properties(halftone_shared PROPERTIES
  OUTPUT_NAME halftone EXPORT_NAME halftone LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${HALFTONE_SOVERSION}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/halftone.map)
if(HALFTONE_SANITIZE)
  target_link_options(halftone_shared PRIVATE -fsanitize=${HALFTONE_SANITIZE})
else()
  target_link_options(halftone_shared PRIVATE LINKER:--no-undefined)
endif()

# Every object of every layer that capi stands on.
add_library(halftone_static STATIC)
foreach(layer base numerics tensor kernels graph passes runtime io nn diffusion models engine capi)
  target_sources(halftone_static PRIVATE $<TARGET_OBJECTS:halftone_${layer}>)
endforeach()
set_target_properties(halftone_static PROPERTIES
  OUTPUT_NAME halftone EXPORT_NAME static LINKER_LANGUAGE CXX)

# What a program needs besides libhalftone.a, by the names that linkers know.
set(needed fmt png)
if(JPEG_FOUND)
  list(APPEND needed jpeg)
endif()
if(WEBP_LIBRARY AND WEBP_INCLUDE_DIR)
  list(APPEND needed webp)
endif()
set(needed_folders "")
if(hwy_FOUND)
  list(APPEND needed hwy)
endif()
if(DNNL_LIBRARY AND DNNL_INCLUDE_DIR AND OpenMP_CXX_FOUND)
  list(APPEND needed dnnl)
endif()
if(HALFTONE_TOKENIZER)
  list(APPEND needed pcre2-8 utf8proc)
endif()
if(HALFTONE_CUDA)
  list(APPEND needed cudart_static rt)
  list(APPEND needed_folders ${CUDAToolkit_LIBRARY_DIR})
endif()
list(APPEND needed ${OpenMP_CXX_LIB_NAMES} ${CMAKE_DL_LIBS} stdc++ m)
list(REMOVE_DUPLICATES needed)
target_link_libraries(halftone_static INTERFACE "$<INSTALL_INTERFACE:${needed}>")
target_link_directories(halftone_static INTERFACE "$<INSTALL_INTERFACE:${needed_folders}>")

foreach(library halftone_shared halftone_static)
  target_include_directories(${library} INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # What halftone.h is written in, whatever a program's own standard is.
  target_compile_features(${library} INTERFACE cxx_std_20)
endforeach()
install(TARGETS halftone_shared halftone_static EXPORT halftone
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES halftone.h halftone_c.h halftone_inline.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/halftone)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/halftone)
install(EXPORT halftone FILE halftone-config.cmake NAMESPACE halftone:: DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/halftone-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/halftone-config-version.cmake
  DESTINATION ${package_folder})

list(TRANSFORM needed PREPEND "-l")
list(TRANSFORM needed_folders PREPEND "-L")
list(JOIN needed_folders " " needed_flags)
list(JOIN needed " " needed_names)
string(STRIP "${needed_flags} ${needed_names}" HALFTONE_LIBS_PRIVATE)
# The prefix is taken from where the file lies, so that an installed tree may be moved.
file(RELATIVE_PATH HALFTONE_PREFIX_FROM_PC /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" HALFTONE_PREFIX_FROM_PC ${HALFTONE_PREFIX_FROM_PC})
configure_file(${CMAKE_SOURCE_DIR}/cmake/halftone.pc.in ${CMAKE_BINARY_DIR}/generated/halftone.pc
  @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/generated/halftone.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The page's files as a source of the server: what is under halftone/server/studio travels inside the
# program.
set(studio_folder ${CMAKE_SOURCE_DIR}/halftone/server/studio)
file(GLOB studio_names CONFIGURE_DEPENDS RELATIVE ${studio_folder} ${studio_folder}/*.html
     ${studio_folder}/*.js ${studio_folder}/*.css ${studio_folder}/*.svg)
set(studio_entries "")
foreach(name ${studio_names})
  file(READ ${studio_folder}/${name} text)
  string(APPEND studio_entries "    {\"${name}\", R\"HALFTONE(${text})HALFTONE\"},\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${studio_folder}/${name})
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/studio_files.cpp @ONLY CONTENT
"// Written by cmake/Studio.cmake.
#include \"halftone/server/studio_files.h\"
namespace halftone {
namespace {
constexpr StudioFile kFiles[] = {
@studio_entries@};
}
std::span<const StudioFile> studio_files() { return kFiles; }
}
")

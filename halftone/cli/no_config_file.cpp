#include "halftone/base/error.h"
#include "halftone/cli/config_file.h"

namespace halftone::cli {

void apply_config(CLI::App&, const std::string& file) {
  throw Error(ErrorCode::kUnsupported, file, "this build cannot read TOML");
}

}  // namespace halftone::cli

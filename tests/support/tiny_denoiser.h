// A family's denoiser from a config alone, for tests that give it weights and inputs by name.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/models/family.h"
#include "tests/support/temp_dir.h"

namespace halftone::test {

inline std::unique_ptr<Denoiser> tiny_denoiser(const Family& family, const nlohmann::json& config) {
  const TempDir dir;
  for (const char* folder : {"transformer", "unet"}) {
    std::filesystem::create_directories(dir / folder);
    write_file(dir / folder / "config.json", config.dump());
  }
  return family.denoiser({dir.path(), {}});
}

}  // namespace halftone::test

#include "halftone/models/autoencoder_kl/codec.h"

#include <nlohmann/json.hpp>

#include "halftone/io/json.h"
#include "halftone/models/autoencoder_kl/names.h"
#include "halftone/models/folder.h"

namespace halftone::autoencoder_kl {

std::unique_ptr<Codec> make_codec(const ModelFiles& files, const Config& usual) {
  constexpr std::string_view kFolder = "vae";
  const auto file = files.of(kFolder) / "config.json";
  const auto told = [&] { return parse_config(read_json_file(file), file.string()); };
  if (!files.holds(kFolder)) return std::make_unique<KlCodec>(told(), WeightNames{});
  const Checkpoint checkpoint = Checkpoint::open(files.weights(kFolder));
  const std::string within = files.within(kFolder);
  Config config = has_config(files, kFolder) ? told() : infer_config(checkpoint, within, usual);
  return std::make_unique<KlCodec>(std::move(config), names_in(checkpoint, within));
}

}  // namespace halftone::autoencoder_kl

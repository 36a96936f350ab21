// AutoencoderKL and FLUX.2's variant of it as the codec of a model.
#pragma once

#include "halftone/models/autoencoder_kl/autoencoder.h"
#include "halftone/models/family.h"

namespace halftone::autoencoder_kl {

class KlCodec final : public Codec {
 public:
  KlCodec(Config config, WeightNames names)
      : config_(std::move(config)), names_(std::move(names)) {}

  std::string_view folder() const override { return "vae"; }
  int64_t channels() const override { return config_.sampler_channels(); }
  int64_t scale() const override { return config_.scale(); }
  std::shared_ptr<Graph> decoder(const Shape& latents, const BuildOptions& o) const override {
    return build_decoder(config_, latents[0], latents[2], latents[3], {o.activations});
  }
  std::shared_ptr<Graph> encoder(const Shape& image, const BuildOptions& o) const override {
    return build_encoder(config_, image[0], image[2], image[3], {o.activations});
  }
  WeightNames names(const Checkpoint&) const override { return names_; }

 private:
  Config config_;
  WeightNames names_;
};

// An AutoencoderKL of a model; `usual` is what a file that holds it does not tell.
std::unique_ptr<Codec> make_codec(const ModelFiles& files, const Config& usual = {});

}  // namespace halftone::autoencoder_kl

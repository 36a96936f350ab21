// An adapter as a file that others read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "halftone/io/safetensors_header.h"
#include "halftone/tensor/tensor.h"

namespace halftone {

// Whose names: those of diffusers and PEFT (transformer.PATH.lora_A.weight), of kohya's tools
// (lora_unet_PATH.lora_down.weight, with _ for dots; lora_transformer_PATH of what is no U-Net), or
// those that ComfyUI reads: of a transformer with diffusers' paths the former, of a U-Net the
// latter.
enum class LoraNaming : uint8_t { kDiffusers, kComfyUi, kKohya };

struct TrainedLora {
  struct Module {
    Tensor down, up;  // F32 [rank, in], [out, rank]
  };
  using Modules = std::map<std::string, Module>;
  Modules modules;              // by the weight of the linear, "layers.0.w1.weight"
  struct Encoder {              // of text
    std::string folder, kohya;  // as AdaptedModel::Encoder has them
    Modules modules;
  };
  std::vector<Encoder> encoders = {};  // that are trained, too
  float strength = 1;                  // alpha / rank
  std::string folder = "transformer";  // of the denoiser
};

// Strength is multiplied into B, so that the file means the same to everyone: an alpha that one
// tool reads and another does not cannot change it. Kohya's tools look for one; it is the rank.
// Stored in BF16 or F32.
void write_lora(const std::filesystem::path& path, const TrainedLora& lora, LoraNaming naming,
                DType dtype, const Metadata& metadata);

}  // namespace halftone

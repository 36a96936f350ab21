#include "halftone/models/zimage/config.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "halftone/base/error.h"

namespace halftone::zimage {
namespace {

// Reads one field, checking its type and range.
class Reader {
 public:
  Reader(const nlohmann::json& json, const std::string& where) : json_(json), where_(where) {
    if (!json.is_object()) throw Error(ErrorCode::kInvalidInput, where, "is not a JSON object");
  }

  int64_t integer(const char* name, int64_t fallback, int64_t least, int64_t most) const {
    if (!json_.contains(name) || json_[name].is_null()) return fallback;
    if (!json_[name].is_number_integer()) fail(name, "is not an integer");
    const auto value = json_[name].get<int64_t>();
    if (value < least || value > most)
      fail(name, fmt::format("{} is not in {} .. {}", value, least, most));
    return value;
  }
  double number(const char* name, double fallback) const {
    if (!json_.contains(name) || json_[name].is_null()) return fallback;
    if (!json_[name].is_number()) fail(name, "is not a number");
    const double value = json_[name].get<double>();
    if (!(value > 0)) fail(name, "is not positive");
    return value;
  }
  std::array<int64_t, 3> three(const char* name, std::array<int64_t, 3> fallback) const {
    if (!json_.contains(name)) return fallback;
    const auto& list = json_[name];
    if (!list.is_array() || list.size() != 3) fail(name, "is not a list of three");
    std::array<int64_t, 3> values{};
    for (size_t i = 0; i < 3; ++i) {
      if (!list[i].is_number_integer() || list[i].get<int64_t>() < 1 ||
          list[i].get<int64_t>() > 1 << 20) {
        fail(name, "holds something that is not a positive integer");
      }
      values[i] = list[i].get<int64_t>();
    }
    return values;
  }
  // A list that this implementation takes with exactly one entry.
  int64_t single(const char* name, int64_t fallback) const {
    if (!json_.contains(name)) return fallback;
    const auto& list = json_[name];
    if (!list.is_array() || list.size() != 1 || !list[0].is_number_integer()) {
      fail(name, "is not a list of one integer");
    }
    return list[0].get<int64_t>();
  }

  [[noreturn]] void fail(const char* name, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidInput, where_, "'{}' {}", name, reason);
  }

 private:
  const nlohmann::json& json_;
  const std::string& where_;
};

}  // namespace

TransformerConfig parse_transformer_config(const nlohmann::json& json, const std::string& where) {
  const Reader read(json, where);
  TransformerConfig c;
  constexpr int64_t kMost = 1 << 20;
  c.patch_size = read.single("all_patch_size", c.patch_size);
  if (c.patch_size < 1 || c.patch_size > 16) read.fail("all_patch_size", "is not in 1 .. 16");
  if (read.single("all_f_patch_size", 1) != 1) read.fail("all_f_patch_size", "is not [1]");
  c.in_channels = read.integer("in_channels", c.in_channels, 1, kMost);
  c.dim = read.integer("dim", c.dim, 1, kMost);
  c.layers = read.integer("n_layers", c.layers, 0, 10000);
  c.refiner_layers = read.integer("n_refiner_layers", c.refiner_layers, 0, 10000);
  c.heads = read.integer("n_heads", c.heads, 1, kMost);
  c.norm_eps = static_cast<float>(read.number("norm_eps", c.norm_eps));
  c.cap_feat_dim = read.integer("cap_feat_dim", c.cap_feat_dim, 1, kMost);
  c.rope_theta = read.number("rope_theta", c.rope_theta);
  c.t_scale = static_cast<float>(read.number("t_scale", c.t_scale));
  c.axes_dims = read.three("axes_dims", c.axes_dims);
  c.axes_lens = read.three("axes_lens", c.axes_lens);
  if (json.contains("qk_norm") && json["qk_norm"] != nlohmann::json(true)) {
    read.fail("qk_norm", "is not true");
  }
  if (json.contains("siglip_feat_dim") && !json["siglip_feat_dim"].is_null()) {
    read.fail("siglip_feat_dim", "belongs to a variant that is not supported");
  }
  if (c.dim % c.heads != 0) read.fail("n_heads", "does not divide 'dim'");
  if (c.dim * 8 % 3 != 0) read.fail("dim", "is no multiple of 3");
  const int64_t rotated = std::accumulate(c.axes_dims.begin(), c.axes_dims.end(), int64_t{0});
  if (rotated != c.head_dim()) {
    read.fail("axes_dims",
              fmt::format("adds up to {}, not to the head's {}", rotated, c.head_dim()));
  }
  for (const int64_t d : c.axes_dims) {
    if (d % 2 != 0) read.fail("axes_dims", "holds an odd number");
  }
  return c;
}

}  // namespace halftone::zimage

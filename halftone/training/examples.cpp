#include "halftone/training/examples.h"

#include <algorithm>
#include <cmath>

#include "halftone/base/error.h"
#include "halftone/io/model_hash.h"
#include "halftone/io/read_picture.h"
#include "halftone/io/resample.h"
#include "halftone/training/buckets.h"
#include "halftone/training/text_training.h"

namespace halftone {
namespace {

std::string file_hash(const std::filesystem::path& path) {
  const auto file = Storage::map_file(path);
  return text_hash({reinterpret_cast<const char*>(file->bytes().data()), file->size()});
}

std::vector<PictureSize> sizes_for(const Model& model, int64_t resolution) {
  auto buckets = bucket_sizes(resolution, model.codec().scale() * model.denoiser().patch());
  std::erase_if(buckets, [&](const PictureSize& size) {
    try {
      model.latent_shape(size.width, size.height);
      return false;
    } catch (const Error&) {
      return true;  // more patches across, or down, than the model has positions for
    }
  });
  if (buckets.empty()) {
    throw Error(ErrorCode::kUsage, "resolution", "{} is more than this model has positions for",
                resolution);
  }
  return buckets;
}

// Of the middle of a picture that is brought to `size`: the crop in pixels of that size.
PictureSizes sizes_of(int64_t width, int64_t height, const PictureSize& size) {
  const double scale = std::max(static_cast<double>(size.width) / static_cast<double>(width),
                                static_cast<double>(size.height) / static_cast<double>(height));
  const auto cut = [scale](int64_t whole, int64_t part) {
    return std::max<int64_t>(
        0, std::llround((static_cast<double>(whole) * scale - static_cast<double>(part)) / 2));
  };
  return {height, width, cut(height, size.height), cut(width, size.width), size.height, size.width};
}

}  // namespace

ExampleMaker::ExampleMaker(Pipeline& pipeline, ExampleCache& cache, int64_t resolution, bool ids)
    : pipeline_(pipeline),
      cache_(cache),
      ids_(ids),
      buckets_(sizes_for(pipeline.model(), resolution)) {
  const Model& model = pipeline.model();
  const std::string dtype(name_of(model.options().activations));
  std::string texts(name_of(model.text_activations()));
  if (const auto& format = model.options().text_format) texts += fmt::format(" {}", format->name);
  text_source_ = fmt::format("text 1 {} {} {} {}\n", model.family().name,
                             model.parts().settings_hash, model.encoders_hash(), texts);
  picture_source_ = fmt::format("picture 1 {} {} {} {}\n", model.family().name,
                                model.parts().settings_hash, model.codec_hash(), dtype);
}

Shape ExampleMaker::largest_picture() const {
  const PictureSize size = *std::max_element(
      buckets_.begin(), buckets_.end(),
      [](const auto& a, const auto& b) { return a.width * a.height < b.width * b.height; });
  return {1, 3, size.height, size.width};
}

Condition ExampleMaker::text(const std::string& caption) {
  if (ids_) return caption_ids(pipeline_.model().conditioner(), caption);
  return cache_.get("text", text_source_ + caption, [&] { return pipeline_.encode(caption); });
}

ExampleMaker::Made ExampleMaker::make(const DataItem& item, float weight) {
  // The size decides what is cached, and is known only of a picture that was read.
  const RgbImage picture = read_picture(item.picture);
  const PictureSize size = nearest_bucket(buckets_, picture.width, picture.height);
  Made made;
  made.size = fmt::format("{}x{}", size.width, size.height);
  made.file = file_hash(item.picture);
  made.hash = made.file + " " + made.size;
  made.enlarged = picture.width < size.width || picture.height < size.height;
  made.example.weight = weight;
  made.example.condition = text(item.caption);
  if (pipeline_.model().denoiser().reads_sizes()) {
    made.example.condition[kSizesOfCondition] =
        sizes_of(picture.width, picture.height, size).tensor();
  }
  const NamedTensors latents = cache_.get("latents", picture_source_ + made.hash, [&] {
    const Tensor image = resize_to_fill(picture, size.width, size.height);
    const Tensor encoded =
        pipeline_.encode_pictures(image.reshape({1, 3, size.height, size.width}));
    return NamedTensors{{"latents", encoded}};
  });
  const Tensor& all = latents.at("latents");
  made.example.latents = all.reshape({all.shape()[1], all.shape()[2], all.shape()[3]});
  return made;
}

void ExampleMaker::add(const Dataset& data, float weight,
                       const std::function<void(const Preparing&)>& events) {
  const auto total = static_cast<int64_t>(data.items.size());
  made_.skipped.insert(made_.skipped.end(), data.skipped.begin(), data.skipped.end());
  int64_t done = 0;
  for (const DataItem& item : data.items) {
    events({"pictures", done++, total});
    try {
      Made made = make(item, weight);
      all_ += fmt::format("{} {} {}\n", made.hash, weight, item.caption);
      ++made_.sizes[made.size];
      made_.files.emplace(made.file, item.picture.string());
      made_.enlarged += made.enlarged ? 1 : 0;
      made_.examples.push_back(std::move(made.example));
    } catch (const Error& error) {
      // What is wrong with the disk or the machine is not the picture's fault.
      const bool its_own =
          error.where() == item.picture.string() || error.code() == ErrorCode::kInvalidInput ||
          error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kNotFound ||
          error.code() == ErrorCode::kUsage;
      if (!its_own) throw;
      made_.skipped.push_back({item.picture.string(), error.where() == item.picture.string()
                                                          ? error.message()
                                                          : error.what()});
    }
  }
  events({"pictures", total, total});
}

PreparedExamples ExampleMaker::finish() const {
  PreparedExamples result = made_;
  result.hash = text_hash(all_);
  return result;
}

}  // namespace halftone

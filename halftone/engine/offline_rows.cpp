#include "halftone/engine/offline_rows.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <new>

#include "halftone/base/error.h"
#include "halftone/engine/picture_text.h"
#include "halftone/io/png.h"
#include "halftone/kernels/kernels.h"

namespace halftone {
namespace {

class RowTimer {
 public:
  explicit RowTimer(double& seconds) : seconds_(seconds) {}
  ~RowTimer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  RowTimer(const RowTimer&) = delete;
  RowTimer& operator=(const RowTimer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

struct OfflineRows::Row {
  size_t picture;
  Job job;
};

// What goes wrong with one picture is its own matter, unless results cannot be written.
template <class Work>
auto OfflineRows::attempt(size_t row, const Work& work) -> std::optional<decltype(work())> {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled || cannot_write_) throw;
    list_.pictures[row].error = error.what();
  } catch (const std::bad_alloc&) {
    list_.pictures[row].error = "there is not enough memory";
  }
  return std::nullopt;
}

void OfflineRows::make(const std::vector<size_t>& pictures) {
  for (size_t begin = 0; begin < pictures.size();) {
    std::vector<size_t> rows(pictures.begin() + static_cast<std::ptrdiff_t>(begin), pictures.end());
    const auto most = attempt(rows[0], [&] { return rows_that_fit(rows); });
    rows.resize(most.value_or(1));
    begin += rows.size();
    if (most) make_rows(rows);
  }
}

// An Error where there is no memory for one of them.
size_t OfflineRows::rows_that_fit(const std::vector<size_t>& rows) {
  GenerateRequest request = list_.request_of(list_.pictures[rows[0]]);
  for (const size_t row : rows) {
    const GenerateRequest& other = list_.request_of(list_.pictures[row]);
    if (other.prompt.size() > request.prompt.size()) request.prompt = other.prompt;
  }
  for (size_t count = rows.size();; --count) {
    request.count = request.batch = static_cast<int>(count);
    ModelMemory planned = plan_generate(*loaded_.pipeline, request);
    if (loaded_.context == nullptr) {
      planned.process = std::max<int64_t>(0, memory_.process - planned.owned_weights);
      planned.process += library_code_bytes();
    }
    const bool beside = loaded_.context != nullptr && !memory_.limited;
    try {
      check_memory(loaded_, planned, memory_.free + (beside ? planned.owned_weights : 0));
      return count;
    } catch (const Error&) {
      if (count == 1) throw;
    }
  }
}

void OfflineRows::make_rows(const std::vector<size_t>& rows) {
  const auto made = attempt(rows[0], [&] {
    make_together(rows);
    return true;
  });
  if (made) return;
  // Whatever stopped in the middle is not used again. One row may have spoilt it for the others.
  loaded_.pipeline = loaded_.make_pipeline();
  if (rows.size() == 1) return;
  list_.pictures[rows[0]].error.clear();
  for (const size_t row : rows) {
    const OfflinePicture& picture = list_.pictures[row];
    if (!picture.done && picture.error.empty()) make_rows({row});
  }
}

void OfflineRows::make_together(const std::vector<size_t>& rows) {
  Stepper stepper(*loaded_.pipeline);
  std::list<Row> open;
  for (const size_t row : rows) {
    const OfflinePicture& picture = list_.pictures[row];
    JobRequest one = static_cast<const JobRequest&>(list_.request_of(picture));
    one.seed += static_cast<uint64_t>(picture.index);
    const RowTimer timer(seconds_.text);
    open.push_back({row, stepper.start(one)});
  }
  while (!open.empty()) {
    tell_({open.front().picture, steps_done_});
    std::vector<Job*> jobs;
    for (Row& row : open) jobs.push_back(&row.job);
    {
      const RowTimer timer(seconds_.denoise);
      stepper.step(jobs);
    }
    steps_done_ += static_cast<int64_t>(open.size());
    for (auto row = open.begin(); row != open.end();) {
      if (!row->job.done()) {
        ++row;
        continue;
      }
      tell_({row->picture, steps_done_});
      finish(stepper, *row);
      row = open.erase(row);
    }
  }
}

void OfflineRows::finish(Stepper& stepper, const Row& row) {
  OfflinePicture& picture = list_.pictures[row.picture];
  const auto made = attempt(
      row.picture, [&] { return finish_picture(stepper, row.job, picture.index, seconds_); });
  if (!made) return;
  cannot_write_ = true;  // until it is written
  write_png(list_.path_of(picture), made->image,
            told_picture_text(list_.text_of(picture, loaded_), list_.request_of(picture),
                              made->reused[0]));
  cannot_write_ = false;
  picture.done = true;
}

}  // namespace halftone

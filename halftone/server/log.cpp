#include "halftone/server/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "halftone/base/error.h"
#include "halftone/io/output.h"
#include "halftone/server/api_error.h"

namespace halftone {
namespace {

spdlog::level::level_enum level_of(Log::Level level) {
  switch (level) {
    case Log::Level::kDebug:
      return spdlog::level::debug;
    case Log::Level::kInfo:
      return spdlog::level::info;
    case Log::Level::kWarning:
      return spdlog::level::warn;
    case Log::Level::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

class Log::Impl {
 public:
  explicit Impl(const Options& options) : json_(options.json) {
    try {
      spdlog::sink_ptr sink;
      if (!options.file.empty()) check_output_file(options.file);
      if (options.file.empty()) {
        sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
      } else {
        sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
      }
      logger_ = std::make_shared<spdlog::logger>("halftone", sink);
    } catch (const spdlog::spdlog_ex& error) {
      throw Error(ErrorCode::kIo, "log-file", "{}", printable(error.what()));
    }
    logger_->set_pattern(json_ ? "%v" : "%Y-%m-%d %H:%M:%S.%e %L %v");
    logger_->set_level(level_of(options.level));
    logger_->flush_on(spdlog::level::info);
  }

  void write(Level level, const std::string& what, const nlohmann::ordered_json& with) {
    if (!logger_->should_log(level_of(level))) return;
    if (json_) {
      nlohmann::ordered_json line;
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      line["time"] = std::chrono::duration<double>(now).count();
      line["level"] = spdlog::level::to_string_view(level_of(level)).data();
      line["event"] = what;
      if (with.is_object()) line.update(with);
      logger_->log(level_of(level), "{}", dump(line));
      return;
    }
    std::string line = what;
    if (with.is_object()) {
      for (const auto& [name, value] : with.items()) {
        line += fmt::format("  {}={}", name,
                            value.is_string() ? value.get<std::string>() : dump(value));
      }
    }
    constexpr size_t kMost = 2000;
    logger_->log(level_of(level), "{}", printable(line, kMost));
  }

 private:
  bool json_;
  std::shared_ptr<spdlog::logger> logger_;
};

Log::Log(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Log::~Log() = default;
void Log::write(Level level, const std::string& what, const nlohmann::ordered_json& with) {
  impl_->write(level, what, with);
}

}  // namespace halftone

#include "halftone/server/metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace halftone {
namespace {

struct Described {
  const char* name;
  const char* help;
};
constexpr Described kDescribed[] = {
    {"halftone_jobs_total", "Jobs that have ended, by kind and state."},
    {"halftone_jobs_submitted_total", "Jobs that were accepted, by kind."},
    {"halftone_jobs_refused_total", "Jobs that were refused because the queue was full."},
    {"halftone_queued", "Jobs that wait."},
    {"halftone_running", "Jobs that run."},
    {"halftone_steps_total", "Forwards of denoisers."},
    {"halftone_rows_total", "Pictures that took part in them; divided by steps: the mean batch."},
    {"halftone_step_seconds_total", "Time that they took."},
    {"halftone_pictures_total", "Pictures that were finished."},
    {"halftone_decode_seconds_total", "Time that decoding them took."},
    {"halftone_fallbacks_total", "Times that something was done otherwise than asked for."},
    {"halftone_memory_bytes", "Memory of this process that is no file's."},
    {"halftone_connections", "Connections that are open."},
    {"halftone_connections_dropped_total", "Connections that were closed unheard: too many."},
    {"halftone_models_loaded", "Models in memory, by precision."},
    {"halftone_requests_total", "Requests, by status."},
};

std::string family_of(const std::string& name) { return name.substr(0, name.find('{')); }

void put(std::string& out, const std::map<std::string, double>& values, const char* type) {
  std::string family;
  for (const auto& [name, value] : values) {
    if (family_of(name) != family) {
      family = family_of(name);
      for (const Described& known : kDescribed) {
        if (family == known.name) out += fmt::format("# HELP {} {}\n", family, known.help);
      }
      out += fmt::format("# TYPE {} {}\n", family, type);
    }
    out += fmt::format("{} {}\n", name, value);
  }
}

}  // namespace

void Metrics::add(const std::string& name, double value) {
  const std::scoped_lock lock(mutex_);
  counters_[name] += value;
}
void Metrics::set(const std::string& name, double value) {
  const std::scoped_lock lock(mutex_);
  gauges_[name] = value;
}
double Metrics::get(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  for (const auto* values : {&counters_, &gauges_}) {
    const auto found = values->find(name);
    if (found != values->end()) return found->second;
  }
  return 0;
}
std::string Metrics::text() const {
  const std::scoped_lock lock(mutex_);
  std::string out;
  put(out, counters_, "counter");
  put(out, gauges_, "gauge");
  return out;
}

}  // namespace halftone

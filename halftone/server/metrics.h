// What a server has counted since it started, as Prometheus reads it. From any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace halftone {

class Metrics {
 public:
  void add(const std::string& name, double value = 1);  // a counter
  void set(const std::string& name, double value);      // what is so now
  double get(const std::string& name) const;            // 0 where nothing was said

  // Text in Prometheus' format; names may carry labels: jobs_total{kind="train"}.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, double> counters_, gauges_;
};

}  // namespace halftone

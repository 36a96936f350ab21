// A PostgreSQL of our own, from Debian's package: in a temporary folder, on a Unix socket there,
// and stopped at the end, also of a test program that is killed.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "tests/support/temp_dir.h"

namespace halftone::test {

class PostgresCluster {
 public:
  // nullptr where none is installed.
  static std::unique_ptr<PostgresCluster> start();
  ~PostgresCluster();

  // Of a database whose tables lie in a schema of this name, which is made.
  std::string url(const std::string& schema) const;
  // Every connection is lost.
  void restart();

 private:
  explicit PostgresCluster(std::string programs);
  void launch();
  void stop();

  const std::string programs_;  // the folder of initdb and postgres
  const TempDir folder_;
  pid_t server_ = -1;
};

}  // namespace halftone::test

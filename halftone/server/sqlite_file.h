// The file of a SQLite store: locked against a second server, and with the tables of this version.
#pragma once

#include <string>

#include "halftone/server/sqlite_database.h"

namespace halftone::sqlite {

// A file beside the database, "<path>.lock", that names who holds it. It stays: removing it would
// let two servers hold locks on two files of that name.
class FileLock {
 public:
  explicit FileLock(const std::string& path);  // an Error where another has it
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

// Makes the file where there is none, which only its owner may read, and its tables.
Database open_file(const std::string& path);

// A copy as it is now, whole or not there, while others write.
void copy_file(const std::string& from, const std::string& to);

}  // namespace halftone::sqlite

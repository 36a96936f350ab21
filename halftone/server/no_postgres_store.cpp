// For builds without libpq.
#include "halftone/base/error.h"
#include "halftone/server/store.h"

namespace halftone {

std::unique_ptr<Store> open_postgres_store(const std::string&, double) {
  throw Error(ErrorCode::kUnsupported, "store", "this build has no PostgreSQL: it needs libpq");
}

}  // namespace halftone

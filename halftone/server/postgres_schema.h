// The tables of a PostgreSQL store.
#pragma once

#include "halftone/server/postgres_connection.h"

namespace halftone::postgres {

// Makes them where there are none, which servers that start at once do one after another. Throws
// where they are those of a newer version.
void make_tables(Connection& connection);

}  // namespace halftone::postgres

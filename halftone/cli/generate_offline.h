// halftone generate --prompts: pictures for all lines of a file.
#pragma once

#include "halftone/cli/generate_report.h"

namespace halftone::cli {

void add_offline_options(CLI::App& command, GenerateOptions& options);

// What a command for one picture has and one for a file has not, and the other way round.
void check_offline_flags(const CLI::App& command, const GenerateOptions& options);

void run_offline(const GenerateOptions& options, const Context& context);

}  // namespace halftone::cli

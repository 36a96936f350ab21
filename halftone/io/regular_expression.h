// Regular expressions from files of Python programs.
#pragma once

#include <string>
#include <string_view>

namespace halftone {

// Whether all of `text` matches `pattern`, as Python's re.fullmatch says. A pattern that is none,
// or that takes too long, is an Error, as is every one in a build without PCRE2. `where` names the
// file.
bool full_match(const std::string& pattern, std::string_view text, const std::string& where);

}  // namespace halftone

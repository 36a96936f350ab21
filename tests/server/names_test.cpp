#include "halftone/server/names.h"

#include <gtest/gtest.h>

namespace halftone {
namespace {

TEST(ServerNames, TakeThePlaceOfPaths) {
  const auto named = [](const std::string& text) {
    return named_paths(text, {{"/data", ""},
                              {"/data/datasets/cats", "cats"},
                              {"/data/runs/01", ""},
                              {"/srv/my models/z", "z"}});
  };
  EXPECT_EQ(named("2 files are skipped; the first: /data/datasets/cats/a b.png: is cut off"),
            "2 files are skipped; the first: cats/a b.png: is cut off");
  EXPECT_EQ(named("checkpoints are in /data/runs/01/x.checkpoints: kept"),
            "checkpoints are in x.checkpoints: kept");
  EXPECT_EQ(named("'/srv/my models/z' and /srv/my models/z/vae/config.json"),
            "'z' and z/vae/config.json");
  EXPECT_EQ(named("/data/datasets/catsup/1.png"), "datasets/catsup/1.png") << "another folder";
  EXPECT_EQ(named("in /usr/share/halftone/x.json, or '/etc/passwd'"), "in x.json, or 'passwd'");
  EXPECT_EQ(named("1/2 and/or 3 pictures/s, / alone, a:/b"),
            "1/2 and/or 3 pictures/s, / alone, a:/b");
  EXPECT_EQ(named(""), "");
  EXPECT_EQ(named_paths("/a/b", {{"/", "root"}}), "b");
}

}  // namespace
}  // namespace halftone

// Draws a picture: generate_cpp MODEL PROMPT SEED OUT.png
#include <halftone/halftone.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace {

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL PROMPT SEED OUT.png\n", argv[0]);
    return 2;
  }
  std::signal(SIGINT, on_interrupt);
  try {
    const halftone::Engine engine;
    const halftone::Model model = engine.load({.path = argv[1]});
    for (const std::string& line : model.info().fallbacks) {
      std::fprintf(stderr, "fallback: %s\n", line.c_str());
    }

    halftone::Request request = model.request(argv[2]);
    request.seed = std::strtoull(argv[3], nullptr, 10);
    const auto progress = [](const halftone_progress& now) {
      std::fprintf(stderr, "\r%s, step %d of %d ", now.stage, static_cast<int>(now.step),
                   static_cast<int>(now.steps));
      return interrupted == 0;
    };
    const std::vector<halftone::Picture> pictures = model.generate(request, progress);
    pictures[0].write_png(argv[4]);
    std::fprintf(stderr, "\n");
    std::printf("%s\n", argv[4]);
    return 0;
  } catch (const halftone::Error& error) {
    std::fprintf(stderr, "\n%s: %s\n", argv[0], error.what());
    return error.status() == HALFTONE_CANCELLED ? 130 : 1;
  }
}

// halftone info: this program, this machine, and what each device does with each format.
#include "halftone/cli/info.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "halftone/base/text.h"
#include "halftone/cli/cli.h"

namespace halftone::cli {
namespace {

using nlohmann::ordered_json;

ordered_json formats_json(const DeviceInfo& device) {
  ordered_json out;
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device, format);
    out[std::string(format.name)] = {{"support", to_string(support.support)}, {"why", support.why}};
  }
  return out;
}

std::string formats_text(const DeviceInfo& device) {
  std::string out;
  for (const Format& format : all_formats()) {
    const FormatSupport support = format_support(device, format);
    out +=
        fmt::format("  {:<16} {:<12} {}\n", format.name, to_string(support.support), support.why);
  }
  return out;
}

std::vector<std::string> backends_of(const Machine& machine) {
  return machine.cuda ? std::vector<std::string>{"cpu", "cuda"} : std::vector<std::string>{"cpu"};
}

// Where --device auto goes, and why not to a GPU that is there.
struct Usual {
  Device device;
  std::string why;
};
Usual usual_device(const Machine& machine) {
  if (machine.gpus.gpus.empty()) return {{}, "there is no GPU"};
  if (!machine.cuda) return {{}, "this build has no CUDA backend (cmake --preset cuda has it)"};
  const DeviceInfo& first = machine.gpus.gpus[0];
  const FormatSupport any = format_support(first, formats::fp32);
  if (any.support == Support::kUnavailable) {
    return {{}, fmt::format("{} {}", first.name, any.why)};
  }
  return {first.device, first.name};
}

}  // namespace

Machine this_machine() {
  const std::vector<std::string> known = backends();
  return {cpu_info(), list_gpus(), std::count(known.begin(), known.end(), "cuda") > 0};
}

ordered_json to_json(const Machine& machine) {
  const CpuInfo& cpu = machine.cpu;
  ordered_json out;
  out["version"] = version();
  out["backends"] = backends_of(machine);
  const Usual usual = usual_device(machine);
  out["usual_device"] = {{"device", usual.device.str()}, {"why", usual.why}};
  out["cpu"] = {
      {"name", cpu.name},         {"threads", cpu.threads}, {"memory_bytes", cpu.memory_bytes},
      {"features", cpu.features}, {"kernels", cpu.kernels}, {"formats", formats_json({})}};
  out["driver"] = machine.gpus.driver;
  out["gpu_note"] = machine.gpus.note;
  out["gpus"] = ordered_json::array();
  for (const DeviceInfo& gpu : machine.gpus.gpus) {
    out["gpus"].push_back({{"index", gpu.device.index},
                           {"name", gpu.name},
                           {"capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                           {"memory_bytes", gpu.memory_bytes},
                           {"formats", formats_json(gpu)}});
  }
  return out;
}

std::string to_text(const Machine& machine) {
  const CpuInfo& cpu = machine.cpu;
  std::string out = fmt::format("halftone {}  (runs on: {})\n\n", version(),
                                fmt::join(backends_of(machine), ", "));
  out += fmt::format("cpu  {}, {} threads, {}\n", cpu.name, cpu.threads,
                     human_bytes(cpu.memory_bytes));
  out += fmt::format("     {}\n     kernels: {}\n", fmt::join(cpu.features, " "), cpu.kernels);
  out += formats_text({});
  for (const DeviceInfo& gpu : machine.gpus.gpus) {
    out += fmt::format("\n{}  {}, sm_{}{}, {}, driver CUDA {}\n", gpu.device.str(), gpu.name,
                       gpu.major, gpu.minor, human_bytes(gpu.memory_bytes), machine.gpus.driver);
    out += formats_text(gpu);
  }
  if (machine.gpus.gpus.empty()) out += fmt::format("\ngpu  none: {}\n", machine.gpus.note);
  const Usual usual = usual_device(machine);
  out += fmt::format("\nWithout --device models run on {}: {}.\n", usual.device.str(), usual.why);
  if (!machine.cuda && !machine.gpus.gpus.empty()) {
    out += "For a GPU this is what its hardware can do.\n";
  }
  return out;
}

void add_info(CLI::App& app, const Context&) {
  CLI::App* command = app.add_subcommand("info", "What this machine can run, and how");
  command->footer(
      "Lists the CPU and every GPU, and for each one which formats are\n"
      "  native       the hardware multiplies in them\n"
      "  emulated     the same numbers through wider arithmetic\n"
      "  unavailable  not at all\n"
      "and says which device models run on where --device names none.");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object instead of text");
  command->callback([json] {
    const Machine machine = this_machine();
    if (*json) {
      print_json(to_json(machine));
    } else {
      fmt::print("{}", to_text(machine));
    }
  });
}

}  // namespace halftone::cli

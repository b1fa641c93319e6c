#include "dofla/dof/dof_table.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

#include "dofla/core/error.h"
#include "dofla/dof/estimate.h"
#include "tests/support/damaged_json.h"
#include "tests/support/expect_error.h"
#include "tests/support/matrices.h"
#include "tests/support/tables.h"

namespace dofla {
namespace {

class DofTableFile : public test::DamagedJson {
 protected:
  DofTableFile() : DamagedJson([](const fs::path& path) { load_dof_table(path); }) {}

  void expect_refused(const std::function<void(Json&)>& damage, const std::string& about,
                      const DofTable& table = test::small_table()) {
    save_dof_table(path_, table);
    expect_damage_refused(load_json(path_), damage, about);
  }
};

DofTable table_with_errors() {
  DofTable table = test::small_table();
  table.ladder = {8, 32};
  for (int i = 1; i <= 6; ++i)
    table.errors.push_back({{1.0 * i, 0.5}, {0.25 / i, 0.125}, 10.0 * i});
  return table;
}

TEST_F(DofTableFile, KeepsTheErrorsOfFeatures) {
  const DofTable table = table_with_errors();
  save_dof_table(path_, table);
  const DofTable loaded = load_dof_table(path_);
  EXPECT_EQ(loaded.ladder, table.ladder);
  ASSERT_EQ(loaded.errors.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(loaded.errors[i].gaussian, table.errors[i].gaussian);
    EXPECT_EQ(loaded.errors[i].leverage, table.errors[i].leverage);
    EXPECT_EQ(loaded.errors[i].largest_score, table.errors[i].largest_score);
  }
}

TEST_F(DofTableFile, RefusesBrokenErrors) {
  const auto head = [](Json& json) -> Json& { return json["layers"][1]["heads"][0]; };
  const auto expect = [&](const std::function<void(Json&)>& damage, const std::string& about) {
    expect_refused(damage, about, table_with_errors());
  };
  expect([](Json& json) { json["ladder"] = "8"; }, "ladder");
  expect([](Json& json) { json["ladder"][0] = 0; }, "ladder");
  expect([](Json& json) { json["ladder"].push_back(64); }, "gaussian");
  expect([&](Json& json) { head(json).erase("errors"); }, "errors: missing");
  expect([&](Json& json) { head(json)["errors"] = 3; }, "layer 2, head 1");
  expect([&](Json& json) { head(json)["errors"]["leverage"][1] = -1; }, "leverage");
  expect([&](Json& json) { head(json)["errors"]["gaussian"].erase(0); }, "gaussian");
  expect([&](Json& json) { head(json)["errors"].erase("largest_score"); }, "largest_score");
}

TEST(DofTable, MeanAndSpreadOverDraws) {
  DofTable table = test::small_table();
  table.model.layers = table.model.heads = 1;
  table.draws = 3;
  table.spectra = {{1.0}, {1.0, 1.0}, {1.0, 1.0, 1.0}};  // N = n/(1+λ)
  const DofEstimate dof = degrees_of_freedom(table, 1.0)[0].largest();
  EXPECT_DOUBLE_EQ(dof.mean, 1.0);
  EXPECT_DOUBLE_EQ(dof.spread, 0.5);
}

TEST(DofTable, ALayerHasTheLargestHeads) {
  const DofTable table = test::table_with({{1.5, 7.25, 3}, {2, 1, 0.5}}, 0x1p-8);
  const auto rows = degrees_of_freedom(table, 0x1p-8);
  EXPECT_EQ(rows[0].largest_head, 1);
  EXPECT_NEAR(rows[0].largest().mean, 7.25, 1e-12);
  EXPECT_EQ(rows[1].largest_head, 0);
  EXPECT_EQ(rows[1].largest().spread, 0);
}

TEST(DofTable, RefusesLambdasItCannotAnswerFor) {
  DofTable table = test::small_table();
  EXPECT_THROW(degrees_of_freedom(table, 0.0), Error);
  EXPECT_THROW(degrees_of_freedom(table, -1.0), Error);
  EXPECT_THROW(degrees_of_freedom(table, std::nan("")), Error);
  EXPECT_THROW(degrees_of_freedom(table, 0x1p-17), Error);
  table.gram = GramScale::kNone;
  table.spectra[3] = {1e18, 50.0, 0.1};  // 0.1 is rounding
  EXPECT_THROW(degrees_of_freedom(table, 0x1p-8), Error);
}

TEST(DofTable, AnswersFromValuesAsFromSpectra) {
  const DofTable spectra = test::small_table();
  DofTable table = test::with_values(spectra, {1.0, 0x1p-4, 0x1p-8});
  for (const double lambda : table.lambdas) {
    const auto rows = degrees_of_freedom(table, lambda),
               known = degrees_of_freedom(spectra, lambda);
    for (size_t s = 0; s < 3; ++s) {
      EXPECT_EQ(rows[s].largest_head, known[s].largest_head);
      for (size_t h = 0; h < 2; ++h) {
        EXPECT_EQ(rows[s].heads[h].mean, known[s].heads[h].mean);
        EXPECT_EQ(rows[s].heads[h].spread, known[s].heads[h].spread);
      }
    }
  }
  test::expect_error([&] { degrees_of_freedom(table, 0.5); },
                     {"0.5 was not measured", "on the CPU"});
  table.values[7][1] = std::nan("");  // layer 2, head 2, second draw
  test::expect_error([&] { degrees_of_freedom(table, 0x1p-4); },
                     {"layer 2, head 2", "rounding", "trace or max"});
  EXPECT_EQ(degrees_of_freedom(table, 1.0).size(), 3u);
}

TEST_F(DofTableFile, ComesBackWithValues) {
  DofTable table = test::with_values(test::small_table(), {1.0, 0x1p-8});
  table.values[3][0] = std::nan("");
  save_dof_table(path_, table);
  const DofTable loaded = load_dof_table(path_);
  EXPECT_EQ(loaded.lambdas, table.lambdas);
  EXPECT_TRUE(loaded.spectra.empty());
  ASSERT_EQ(loaded.values.size(), table.values.size());
  EXPECT_TRUE(std::isnan(loaded.values[3][0]));
  EXPECT_EQ(loaded.values[3][1], table.values[3][1]);
  EXPECT_EQ(loaded.values[11], table.values[11]);
}

TEST_F(DofTableFile, RefusesDamagedValues) {
  const DofTable table = test::with_values(test::small_table(), {1.0, 0x1p-8});
  const auto refused = [&](const std::function<void(Json&)>& damage, const std::string& about) {
    expect_refused(damage, about, table);
  };
  refused([](Json& j) { j.erase("lambdas"); }, "spectra");
  refused([](Json& j) { j["lambdas"] = 1.0; }, "lambdas");
  refused([](Json& j) { j["lambdas"] = Json::array(); }, "lambdas");
  refused([](Json& j) { j["lambdas"][0] = -1; }, "lambdas");
  refused([](Json& j) { j["lambdas"][1] = 0x1p-4; }, "lambda among them");
  const auto values = [](Json& j) -> Json& { return j["layers"][1]["heads"][0]["values"][1]; };
  refused([&](Json& j) { values(j)[0] = -1; }, "layer 2, head 1");
  refused([&](Json& j) { values(j)[0] = 61; }, "from 0 to 60");
  refused([&](Json& j) { values(j)[0] = "many"; }, "layer 2, head 1");
  refused([&](Json& j) { values(j).push_back(1); }, "expected 2 values, found 3");
  refused([&](Json& j) { values(j) = 3; }, "expected 2 values");
}

TEST_F(DofTableFile, ComesBack) {
  const DofTable table = test::small_table();
  save_dof_table(path_, table);
  const DofTable loaded = load_dof_table(path_);
  EXPECT_EQ(loaded.model, table.model);
  EXPECT_EQ(loaded.gram, table.gram);
  EXPECT_EQ(loaded.lambda, table.lambda);
  EXPECT_EQ(loaded.smallest_lambda, table.smallest_lambda);
  EXPECT_EQ(loaded.samples, table.samples);
  EXPECT_EQ(loaded.draws, table.draws);
  EXPECT_EQ(loaded.sequences, table.sequences);
  EXPECT_EQ(loaded.length, table.length);
  EXPECT_EQ(loaded.seed, table.seed);
  save_dof_table(folder_.path() / "again.json", loaded);
  EXPECT_EQ(load_dof_table(folder_.path() / "again.json").spectra, loaded.spectra);
}

// What is left out of a file, and its ten digits, move no N_λ by more than 1e-6.
TEST_F(DofTableFile, AnswersForAnyLambdaLikeTheFullSpectrum) {
  DofTable table = test::small_table();
  table.samples = 300;
  table.draws = 1;
  table.spectra.clear();
  std::vector<std::vector<double>> full;
  for (uint64_t i = 0; i < 6; ++i) {  // from full rank to rank one
    const Tensor samples = test::gaussian({300, 64}, 0.3 + 0.8 * static_cast<double>(i), i);
    const PsdMatrix matrix = gram_matrix(kernel_samples(samples, table.gram));
    full.push_back(dense_spectrum(matrix));
    table.spectra.push_back(spectrum(matrix));
  }
  save_dof_table(path_, table);
  const DofTable loaded = load_dof_table(path_);
  for (int e = -2; e <= 16; ++e) {
    const double lambda = std::ldexp(1.0, -e);
    const auto rows = degrees_of_freedom(loaded, lambda);
    for (size_t i = 0; i < full.size(); ++i) {
      const double expected = degrees_of_freedom(full[i], lambda);
      EXPECT_NEAR(rows[i / 2].heads[i % 2].mean, expected, 1e-6 * expected) << "2^-" << e;
    }
  }
}

TEST_F(DofTableFile, SummaryIsTheFileWithoutSpectra) {
  const DofTable table = test::small_table();
  save_dof_table(path_, table);
  Json file = load_json(path_);
  for (Json& layer : file["layers"])
    for (Json& head : layer["heads"]) head.erase("spectra");
  EXPECT_EQ(file, Json::parse(dof_summary(table).dump()));
  EXPECT_EQ(file["format"], "dofla.dof");
  EXPECT_EQ(file["layers"].size(), 3u);
  EXPECT_EQ(file["layers"][2]["heads"].size(), 2u);
}

TEST_F(DofTableFile, RefusesDamage) {
  expect_refused([](Json& j) { j["version"] = 2; }, "newer dofla");
  expect_refused([](Json& j) { j["version"] = "1"; }, "version");
  expect_refused([](Json& j) { j["format"] = "dofla.plan"; }, "dofla.dof");
  expect_refused([](Json& j) { j = Json::array(); }, "dofla.dof");
  for (const char* field : {"model", "gram", "lambda", "smallest_lambda", "samples", "draws",
                            "sequences", "length", "seed", "layers"})
    expect_refused([&](Json& j) { j.erase(field); }, field);
  expect_refused([](Json& j) { j["lambda"] = 0; }, "lambda");
  expect_refused([](Json& j) { j["lambda"] = 0x1p-20; }, "smallest_lambda");
  expect_refused([](Json& j) { j["gram"] = "median"; }, "gram");
  expect_refused([](Json& j) { j["seed"] = -1; }, "seed");
  expect_refused([](Json& j) { j["draws"] = 1 << 28; }, "spectra");
  expect_refused([](Json& j) { j["model"]["layers"] = 4; }, "expected 4 entries, found 3");
  expect_refused([](Json& j) { j["model"]["heads"] = 3; }, "feature_heads: 2 do not divide");
  expect_refused([](Json& j) { j["feature_heads"] = 1; }, "expected 1 entries, found 2");
  expect_refused(  // as files of version 0.1 are
      [](Json& j) {
        j.erase("feature_heads");
        j["model"]["heads"] = 3;
      },
      "expected 3 entries, found 2");
  const auto spectrum = [](Json& j) -> Json& { return j["layers"][1]["heads"][0]["spectra"][1]; };
  expect_refused([&](Json& j) { spectrum(j)[0] = -1; }, "layer 2, head 1");
  expect_refused([&](Json& j) { spectrum(j)[0] = nullptr; }, "layer 2, head 1");  // NaN in JSON
  expect_refused([&](Json& j) { spectrum(j)[1] = 5; }, "do not grow");
  expect_refused([&](Json& j) { spectrum(j) = Json::array(); }, "eigenvalues");
  expect_refused([&](Json& j) { spectrum(j) = Json::array({0.0}); }, "positive eigenvalue");
  expect_refused([&](Json& j) { spectrum(j) = Json(std::vector<double>(61, 1.0)); },
                 "from 1 to 60");
  expect_refused([&](Json& j) { j["layers"][1]["heads"][0] = 3; }, "spectra");
}

TEST_F(DofTableFile, RefusesAFileCutShort) {
  save_dof_table(path_, test::small_table());
  const std::string whole = read_text(path_);
  for (const size_t size : {size_t{0}, whole.size() / 3, whole.size() - 3}) {
    write_whole(path_, whole.substr(0, size));
    expect_load_fails("not valid JSON");
  }
  EXPECT_THROW(load_dof_table(folder_.path() / "absent.json"), Error);
}

}  // namespace
}  // namespace dofla

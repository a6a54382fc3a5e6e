// Numbers, layouts and archives.

#include <bit>
#include <cmath>
#include <cstdint>

#include "check.h"
#include "runtime/archive.h"

using namespace tenon;

namespace {

using Words = std::vector<int64_t>;

std::optional<int64_t> value(const Words& words, const Words& symbols = {}) {
  return SizeExpression{words}.evaluate(symbols);
}

TensorLayout layout(int dtype, const Words& sizes, const Words& strides, int64_t offset = 0) {
  return {static_cast<DType>(dtype), sizes, strides, offset};
}

}  // namespace

TEST(an_expression_is_computed) {
  // (s0 * 3 + 1) / 2, remainder, and a division that has to leave nothing
  CHECK(value({1, 0, 0, 3, 3, 0, 1, 2, 0, 2, 4}, {5}) == 8);
  CHECK(value({1, 0, 0, 3, 5}, {5}) == 2);
  CHECK(value({1, 0, 0, 5, 6}, {10}) == 2);
  CHECK(!value({1, 0, 0, 4, 6}, {10}));
}

TEST(an_expression_chooses_and_scales) {
  CHECK(value({1, 0, 1, 1, 7}, {5, -3}) == -3 && value({1, 0, 1, 1, 8}, {5, -3}) == 5);
  const auto bits = [](double number) { return std::bit_cast<int64_t>(number); };
  CHECK(value({1, 0, 0, bits(1.7), 9}, {10}) == 17);  // the product is rounded, then cut off
  CHECK(value({1, 0, 0, bits(0.3), 9}, {10}) == 3);
  CHECK(value({1, 0, 0, bits(-2.5), 9}, {3}) == -7);
  CHECK(!value({1, 0, 0, bits(4.0), 9}, {INT64_MAX}));
  CHECK(!value({1, 0, 0, bits(std::nan("")), 9}, {1}));
}

TEST(divisions_round_down) {
  for (int64_t a = -9; a <= 9; ++a) {
    const auto quotient = value({1, 0, 0, 4, 4}, {a}), rest = value({1, 0, 0, 4, 5}, {a});
    CHECK(*quotient * 4 + *rest == a && *rest >= 0 && *rest < 4);
    CHECK(value({1, 0, 0, 4, 6}, {a}).has_value() == (*rest == 0));
  }
  CHECK(value({0, INT64_MIN, 0, 1, 4}) == INT64_MIN && value({0, INT64_MIN, 0, 3, 5}) == 1);
}

TEST(an_expression_that_is_none_has_no_value) {
  CHECK(!value({}));
  CHECK(!value({0}));          // a constant without its number
  CHECK(!value({1, 1}, {7}));  // no such symbol
  CHECK(!value({1, -1}, {7}));
  CHECK(!value({2}));               // nothing to add
  CHECK(!value({0, 1, 0, 2}));      // two values
  CHECK(!value({0, 1, 0, 2, 99}));  // no such word
  CHECK(!value({0, 1, 0, 0, 4}));   // by zero
  CHECK(!value({0, 1, 0, -2, 4}));  // by a negative number
  CHECK(!value({0, INT64_MAX, 0, 1, 2}));
  CHECK(!value({0, INT64_MAX, 0, 2, 3}));
  Words deep;
  for (int k = 0; k < 1000; ++k)
    deep.insert(deep.end(), {0, 1});
  deep.insert(deep.end(), 999, 2);
  CHECK(!value(deep));
}

TEST(elements_have_their_sizes) {
  CHECK(item_size(DType{6}) == 4 && item_size(DType{7}) == 8 && item_size(DType{15}) == 2);
  CHECK(item_size(DType{11}) == 1 && item_size(DType{10}) == 16 && item_size(DType{29}) == 8);
  CHECK(item_size(DType{12}) == 0 && item_size(kNoDType) == 0 && item_size(DType{-1}) == 0);
}

TEST(a_tensor_takes_the_bytes_up_to_its_last_element) {
  CHECK(storage_bytes(layout(6, {2, 3}, {3, 1})) == 24);
  CHECK(storage_bytes(layout(6, {2, 3}, {10, 2}, 5)) == 80);
  CHECK(storage_bytes(layout(6, {4}, {0})) == 4);
  CHECK(storage_bytes(layout(6, {0, 5}, {5, 1}, 3)) == 0);
  CHECK(storage_bytes(layout(6, {}, {})) == 4);
}

TEST(what_is_no_tensor_takes_none) {
  CHECK(!storage_bytes(layout(6, {2}, {1, 1})));
  CHECK(!storage_bytes(layout(6, {-1}, {1})));
  CHECK(!storage_bytes(layout(6, {2}, {-1})));
  CHECK(!storage_bytes(layout(6, {2}, {1}, -1)));
  CHECK(!storage_bytes(layout(46, {2}, {1})));
  CHECK(!storage_bytes(layout(6, {INT64_MAX, 2}, {2, 1})));
  CHECK(!storage_bytes(layout(6, {int64_t{1} << 45}, {1})));
  CHECK(!dense_strides({INT64_MAX, 3, 3}));
}

TEST(numbers_come_back) {
  Writer out;
  const Words numbers{0, 1, -1, 63, 64, -64, -65, INT64_MAX, INT64_MIN};
  out(numbers, std::string("text"), 1.5, true, std::optional<int64_t>(), std::optional<int64_t>(7));
  Words found;
  std::string text;
  double real = 0;
  bool truth = false;
  std::optional<int64_t> none(1), seven;
  Reader in(out.bytes);
  in(found, text, real, truth, none, seven);
  CHECK(found == numbers && text == "text" && real == 1.5 && truth && !none && seven == 7);
  CHECK(in.at_end());
}

TEST(reading_ends_where_the_data_does) {
  const auto read = [](const std::string& bytes) {
    Words found;
    Reader in(bytes);
    in(found);
  };
  CHECK_RAISES("ends early", read(""));
  CHECK_RAISES("longer than the data", read(std::string("\x7e", 1)));  // 63 elements
  CHECK_RAISES("too long", read(std::string(11, '\xff')));
  CHECK_RAISES("longer than the data", read(std::string("\x01", 1)));  // -1 elements
  CHECK_RAISES("out of range", {
    Writer out;
    out(int64_t{1} << 40);
    int32_t small = 0;
    Reader in(out.bytes);
    in(small);
  });
}

TEST(damage_changes_the_checksum) {
  const std::string bytes = "the bytes of a file, and some more";
  for (size_t k = 0; k < bytes.size(); ++k) {
    auto changed = bytes;
    changed[k] ^= 1;
    CHECK(checksum(changed) != checksum(bytes));
  }
  CHECK(checksum(bytes.substr(1)) != checksum(bytes));
}

// Forward and backward of zoo nets, some sequences of one net at a time.
//
// `Lockstep` of lockstep.py says what is computed. Here a net takes the sequences of about ROWS
// tokens through the whole forward and backward pass before the next ones, so that its weights,
// their gradients and all activations stay in the second-level cache of one core. Rows are tokens:
// sequences are packed one after another, without padding. Products keep their columns in
// registers, which is why D, D_A, the width of a head and that of the classifier are multiples of
// `lanes`.
//
// Compiled with -DREAL=float, or double for tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace {

using real = REAL;

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTERS = 16;
#elif defined(__AVX__)
constexpr int BYTES = 32, REGISTERS = 8;
#else
constexpr int BYTES = 16, REGISTERS = 8;
#endif
constexpr int L = BYTES / sizeof(real), ROWS = 64;
constexpr real EPS = 1e-5;  // of every LayerNorm

typedef real vec __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

inline vec load(const real* p) { return *reinterpret_cast<const vec*>(p); }
inline void store(real* p, vec v) { *reinterpret_cast<vec*>(p) = v; }

// All lanes of v put together by f: halves, quarters and so on with each other.
template <int W, typename F, std::size_t... I>
inline real fold(vec v, F f, std::index_sequence<I...> all) {
#if defined(__clang__)
  v = f(v, __builtin_shufflevector(v, v, int(I ^ W)...));
#else
  using place = std::conditional_t<sizeof(real) == 4, int32_t, int64_t>;
  typedef place places __attribute__((vector_size(BYTES)));
  v = f(v, __builtin_shuffle(v, places{place(I ^ W)...}));
#endif
  if constexpr (W > 1)
    return fold<W / 2>(v, f, all);
  else
    return v[0];
}
template <typename F>
inline real fold(vec v, F f) {
  return fold<L / 2>(v, f, std::make_index_sequence<L>());
}

inline real sum(vec v) {
  return fold(v, [](vec a, vec b) { return a + b; });
}
inline real highest(vec v) {
  return fold(v, [](vec a, vec b) { return a > b ? a : b; });
}

// ------------------------------------------------------------------------------ functions

inline vec exp_of(vec x, double) {
  for (int i = 0; i < L; i++) x[i] = std::exp(x[i]);
  return x;
}

// 2^n times a polynomial (Cephes) on [-ln 2 / 2, ln 2 / 2]: correct to one unit in the last place.
inline vec exp_of(vec x, float) {
  typedef int32_t whole __attribute__((vector_size(BYTES)));
  // No x is above 0: the highest of a row has been taken off.
  const vec lowest = vec{} - real(87);
  x = x < lowest ? lowest : x;
  const real magic = 12582912;  // 1.5 * 2^23: adding it rounds to a whole number
  vec n = x * real(1.44269504088896341) + magic;
  whole bits;
  std::memcpy(&bits, &n, sizeof bits);
  n = n - magic;
  vec r = x - n * real(0.693359375) + n * real(2.12194440e-4);
  vec p = r * real(1.9875691500e-4) + real(1.3981999507e-3);
  p = p * r + real(8.3334519073e-3);
  p = p * r + real(4.1665795894e-2);
  p = p * r + real(1.6666665459e-1);
  p = p * r + real(5.0000001201e-1);
  p = p * r * r + r + real(1);
  whole result;
  std::memcpy(&result, &p, sizeof result);
  result += bits << 23;
  std::memcpy(&p, &result, sizeof p);
  return x == x ? p : x;
}

// The normal distribution function of x, and its density there.
inline void normal(vec x, vec* below, vec* density, double) {
  for (int i = 0; i < L; i++) {
    (*below)[i] = 0.5 * std::erfc(-x[i] * M_SQRT1_2);
    (*density)[i] = std::exp(-0.5 * x[i] * x[i]) * 0.3989422804014327;
  }
}

// Abramowitz and Stegun 7.1.26: 3e-7 off at most.
inline void normal(vec x, vec* below, vec* density, float) {
  const vec zero = {};
  const vec z = (x < zero ? -x : x) * real(M_SQRT1_2);
  const vec t = real(1) / (z * real(0.3275911) + real(1));
  vec p = t * real(1.061405429) + real(-1.453152027);
  p = p * t + real(1.421413741);
  p = p * t + real(-0.284496736);
  p = p * t + real(0.254829592);
  const vec e = exp_of(-z * z, real());
  const vec tail = p * t * e * real(0.5);
  *below = x < zero ? tail : real(1) - tail;
  *density = e * real(0.3989422804014327);
}

// ------------------------------------------------------------------------------- products

// One tile of C = alpha A B, or C + alpha A B, in registers. A is m x k with any strides.
template <int M, int N>
inline void tile(int K, real alpha, const real* A, int row, int column, const real* B,
                        int ldb, real* C, int ldc, bool add) {
  vec c[M][N];
#pragma GCC unroll 24
  for (int i = 0; i < M; i++)
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) c[i][j] = vec{};
  for (int k = 0; k < K; k++) {
    vec b[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) b[j] = load(B + k * ldb + j * L);
#pragma GCC unroll 24
    for (int i = 0; i < M; i++) {
      const real a = A[i * row + k * column];
#pragma GCC unroll 8
      for (int j = 0; j < N; j++) c[i][j] += a * b[j];
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < M; i++)
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      real* at = C + i * ldc + j * L;
      store(at, add ? load(at) + alpha * c[i][j] : alpha * c[i][j]);
    }
}

template <int M, int N>
void rows(int m, int K, real alpha, const real* A, int row, int column, const real* B,
                 int ldb, real* C, int ldc, bool add) {
  for (; m >= M; m -= M, A += M * row, C += M * ldc)
    tile<M, N>(K, alpha, A, row, column, B, ldb, C, ldc, add);
  if constexpr (M > 1)
    if (m) rows<M / 2, N>(m, K, alpha, A, row, column, B, ldb, C, ldc, add);
}

// C (m x n) = alpha A B, or is added to.
void product(int m, int n, int K, real alpha, const real* A, int row, int column,
                    const real* B, int ldb, real* C, int ldc, bool add) {
  constexpr int WIDE = REGISTERS == 16 ? 4 : 2;
  int j = 0;
  for (; n - j >= WIDE * L; j += WIDE * L)
    rows<REGISTERS / WIDE, WIDE>(m, K, alpha, A, row, column, B + j, ldb, C + j, ldc, add);
  if constexpr (WIDE == 4)
    if (n - j >= 2 * L) {
      rows<REGISTERS / 2, 2>(m, K, alpha, A, row, column, B + j, ldb, C + j, ldc, add);
      j += 2 * L;
    }
  if (n - j >= L)
    rows<REGISTERS / 2, 1>(m, K, alpha, A, row, column, B + j, ldb, C + j, ldc, add);
}

void transpose(int m, int n, const real* A, int lda, real* out, int ldo) {
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) out[j * ldo + i] = A[i * lda + j];
}

// --------------------------------------------------------------------------------- a net

struct Sizes {
  int64_t nets, sequences, tokens, inputs, D, heads, width, D_A, hidden, classes, blocks;
  int64_t skip, rectified, biased, weights;
};

int round_up(int n) { return (n + L - 1) / L * L; }

// A linear map x W + b: where it is in the flat rows of weights and gradients.
struct Linear {
  int in, out, across, wide;  // the last two: in and out, rounded up
  const real *w, *b;
  real *gw, *gb;
  std::vector<real> plain, turned;  // W padded to whole registers; its transpose, for backward

  void prepare(bool turn) {
    if (wide != out) {
      plain.assign(in * wide + wide, 0);
      for (int i = 0; i < in; i++) std::memcpy(&plain[i * wide], w + i * out, out * sizeof(real));
      if (b) std::memcpy(&plain[in * wide], b, out * sizeof(real));
      w = plain.data();
      if (b) b = plain.data() + in * wide;
    }
    if (turn) {
      turned.assign(wide * across, 0);
      transpose(in, wide, w, wide, turned.data(), across);
    }
  }
  void forward(int m, const real* x, int ldx, real* y) const {
    product(m, wide, in, 1, x, ldx, 1, w, wide, y, wide, false);
    if (b)
      for (int r = 0; r < m; r++)
        for (int j = 0; j < wide; j += L) store(y + r * wide + j, load(y + r * wide + j) + load(b + j));
  }
  // Add to the gradients of W and b, and write that of x, whose rows are `across` wide; those that
  // are wanted.
  void backward(int m, const real* x, int ldx, const real* g, real* gx) {
    if (gx) product(m, across, out, 1, g, wide, 1, turned.data(), across, gx, across, false);
    if (!gw) return;
    if (wide == out) {
      product(in, out, m, 1, x, 1, ldx, g, wide, gw, out, true);
    } else {
      for (int i = 0; i < in; i++)
        for (int j = 0; j < out; j++) {
          real total = 0;
          for (int r = 0; r < m; r++) total += x[r * ldx + i] * g[r * wide + j];
          gw[i * out + j] += total;
        }
    }
    if (gb)
      for (int j = 0; j < wide; j += L) {
        vec total = {};
        for (int r = 0; r < m; r++) total += load(g + r * wide + j);
        for (int i = j; i < out && i < j + L; i++) gb[i] += total[i - j];
      }
  }
};

struct Block {
  Linear qkv, o, a, b;
  // What the backward pass needs of some sequences.
  std::vector<real> first, first_rstd, heads, share, mixed, second, second_rstd, before, active;
};

struct Net {
  const Sizes& s;
  const bool pulled;  // gradients of the inputs are wanted, and none of the weights
  Linear embedding, classifier1, classifier2;
  std::vector<Block> blocks;
  std::vector<real> x, y, g, gy, g_wide, last, last_rstd, pooled, hidden, logits, g_logits, turned,
      g_share, packed, g_packed;
  std::vector<int> start, length;  // of the sequences that are packed now
  int packed_rows;
  int padded;  // tokens, rounded up

  Net(const Sizes& sizes, bool pulled)
      : s(sizes), pulled(pulled), blocks(sizes.blocks), padded(round_up(sizes.tokens)) {
    const int T = s.tokens, most = std::max(T, ROWS);  // rows, and so sequences, at a time
    auto linear = [](Linear& l, int in, int out) {
      l.in = in, l.out = out, l.across = round_up(in), l.wide = round_up(out);
    };
    linear(embedding, s.inputs, s.D);
    linear(classifier1, s.D, s.hidden);
    linear(classifier2, s.hidden, s.classes);
    for (Block& k : blocks) {
      linear(k.qkv, s.D, 3 * s.D), linear(k.o, s.D, s.D);
      linear(k.a, s.D, s.D_A), linear(k.b, s.D_A, s.D);
      k.first.resize(most * s.D), k.first_rstd.resize(most), k.heads.resize(most * 3 * s.D);
      k.share.resize(s.heads * most * padded), k.mixed.resize(most * s.D);
      k.second.resize(most * s.D), k.second_rstd.resize(most);
      k.active.resize(most * s.D_A), k.before.resize(s.rectified ? 0 : most * s.D_A);
    }
    for (auto* buffer : {&x, &y, &g, &gy, &last}) buffer->resize(most * s.D);
    last_rstd.resize(most);
    g_wide.resize(most * std::max({3 * s.D, s.D_A, s.hidden}));
    pooled.resize(most * s.D), hidden.resize(most * classifier1.wide);
    logits.resize(most * classifier2.wide), g_logits.resize(most * classifier2.wide);
    turned.resize(s.width * padded), g_share.resize(T * padded);
    packed.resize(most * s.inputs), g_packed.resize(pulled ? most * embedding.across : 0);
  }

  // From here on its weights are these; their gradient goes there, if it is wanted.
  void read(const real* weights, real* gradient) {
    int64_t at = 0;
    auto take = [&](int count) { at += count; return at - count; };
    auto linear = [&](Linear& l, bool biased) {
      const int64_t w = take(l.in * l.out), b = biased ? take(l.out) : -1;
      l.w = weights + w, l.b = biased ? weights + b : nullptr;
      l.gw = gradient ? gradient + w : nullptr, l.gb = gradient && biased ? gradient + b : nullptr;
      l.prepare(pulled || (gradient && &l != &embedding));
    };
    if (s.inputs) linear(embedding, true);
    for (Block& k : blocks) linear(k.qkv, s.biased), linear(k.o, s.biased), linear(k.a, true), linear(k.b, true);
    linear(classifier1, true), linear(classifier2, true);
  }

  void norm(int m, const real* from, real* out, real* rstd) const {
    const int D = s.D;
    for (int r = 0; r < m; r++, from += D, out += D) {
      vec total = {}, squares = {};
      for (int j = 0; j < D; j += L) total += load(from + j);
      const real mean = sum(total) / D;
      for (int j = 0; j < D; j += L) {
        const vec centred = load(from + j) - mean;
        squares += centred * centred;
        store(out + j, centred);
      }
      rstd[r] = 1 / std::sqrt(sum(squares) / D + EPS);
      for (int j = 0; j < D; j += L) store(out + j, load(out + j) * rstd[r]);
    }
  }

  // The gradient of what was normed, in place of that of the result, or added to `to`.
  void norm_backward(int m, real* from, const real* normed, const real* rstd, real* to) const {
    const int D = s.D;
    for (int r = 0; r < m; r++, from += D, normed += D, to += D) {
      vec total = {}, along = {};
      for (int j = 0; j < D; j += L) {
        total += load(from + j);
        along += load(from + j) * load(normed + j);
      }
      const real mean = sum(total) / D, share = sum(along) / D;
      for (int j = 0; j < D; j += L) {
        const vec inner = (load(from + j) - mean - load(normed + j) * share) * rstd[r];
        store(to + j, s.skip ? load(to + j) + inner : inner);
      }
    }
  }

  // Rows of the pool that are chosen for the tokens of a layer; none without dropout.
  struct Masks {
    const real* pool;
    const int64_t* choice;  // layers x all rows of the batch
    int64_t rows;
  };

  void drop(const Masks& masks, int layer, int64_t sequence, const real* from, real* to) const {
    for (size_t i = 0; i < length.size(); i++)
      for (int t = 0; t < length[i]; t++) {
        const int64_t place = (sequence + i) * s.tokens + t;
        const real* mask = masks.pool + masks.choice[layer * masks.rows + place] * s.D;
        const int64_t at = (start[i] + t) * s.D;
        for (int j = 0; j < s.D; j += L) store(to + at + j, load(from + at + j) * load(mask + j));
      }
  }

  void attend(Block& k) {
    const int D = s.D, w = s.width;
    const real scale = 1 / std::sqrt(real(w));
    for (size_t i = 0; i < length.size(); i++)
      for (int h = 0; h < s.heads; h++) {
        const int T = length[i];
        const real* q = &k.heads[start[i] * 3 * D + h * w];
        real* share = &k.share[(h * packed_rows + start[i]) * padded];
        std::fill(turned.begin(), turned.end(), real(0));
        transpose(T, w, q + D, 3 * D, turned.data(), padded);
        product(T, padded, w, scale, q, 3 * D, 1, turned.data(), padded, share, padded, false);
        for (int t = 0; t < T; t++) {
          real* row = share + t * padded;
          for (int u = T; u < padded; u++) row[u] = row[0];  // or the highest may be one of these
          vec most = load(row), total = {};
          for (int u = L; u < padded; u += L) most = most > load(row + u) ? most : load(row + u);
          const real top = highest(most);
          for (int u = 0; u < padded; u += L) store(row + u, exp_of(load(row + u) - top, real()));
          for (int u = T; u < padded; u++) row[u] = 0;
          for (int u = 0; u < padded; u += L) total += load(row + u);
          const real inverse = 1 / sum(total);
          for (int u = 0; u < padded; u += L) store(row + u, load(row + u) * inverse);
        }
        product(T, w, T, 1, share, padded, 1, q + 2 * D, 3 * D, &k.mixed[start[i] * D + h * w], D, false);
      }
  }

  // From the gradient gy of `mixed` that of `heads`.
  void attend_backward(Block& k, real* g_heads) {
    const int D = s.D, w = s.width;
    const real scale = 1 / std::sqrt(real(w));
    for (size_t i = 0; i < length.size(); i++)
      for (int h = 0; h < s.heads; h++) {
        const int T = length[i];
        const int64_t at = start[i] * 3 * D + h * w;
        const real *q = &k.heads[at], *gm = &gy[start[i] * D + h * w];
        const real* share = &k.share[(h * packed_rows + start[i]) * padded];
        real* gq = g_heads + at;
        std::fill(turned.begin(), turned.end(), real(0));
        transpose(T, w, q + 2 * D, 3 * D, turned.data(), padded);
        product(T, padded, w, 1, gm, D, 1, turned.data(), padded, g_share.data(), padded, false);
        product(T, w, T, 1, share, 1, padded, gm, D, gq + 2 * D, 3 * D, false);
        for (int t = 0; t < T; t++) {
          real* row = &g_share[t * padded];
          const real* p = share + t * padded;
          vec along = {};
          for (int u = 0; u < padded; u += L) along += load(row + u) * load(p + u);
          const real mean = sum(along);
          for (int u = 0; u < padded; u += L) store(row + u, load(p + u) * (load(row + u) - mean));
        }
        product(T, w, T, scale, g_share.data(), padded, 1, q + D, 3 * D, gq, 3 * D, false);
        product(T, w, T, scale, g_share.data(), 1, padded, q, 3 * D, gq + D, 3 * D, false);
      }
  }

  void activate(int m, Block& k) const {
    const vec zero = {};
    if (!s.rectified) k.before = k.active;
    for (int64_t i = 0; i < m * s.D_A; i += L) {
      const vec v = load(&k.active[i]);
      vec below, density;
      if (s.rectified) {
        store(&k.active[i], v < zero ? zero : v);  // NaN stays
      } else {
        normal(v, &below, &density, real());
        store(&k.active[i], v * below);
      }
    }
  }

  void activate_backward(int m, const Block& k, real* gradient) const {
    const vec zero = {};
    for (int64_t i = 0; i < m * s.D_A; i += L) {
      vec below, density, g = load(gradient + i);
      if (s.rectified) {
        g = load(&k.active[i]) <= zero ? zero : g;
      } else {
        const vec v = load(&k.before[i]);
        normal(v, &below, &density, real());
        g *= below + v * density;
      }
      store(gradient + i, g);
    }
  }

  // x of all tokens becomes y, or is added to.
  void join(int m) {
    if (!s.skip) {
      x.swap(y);
      return;
    }
    for (int64_t i = 0; i < m * s.D; i += L) store(&x[i], load(&x[i]) + load(&y[i]));
  }

  // Take the sequences from `sequence` on through the net; how many rows they are.
  int forward(int64_t sequence, const real* inputs, const real* positions, const Masks& masks) {
    const int D = s.D, width = s.inputs ? s.inputs : D;
    const int m = packed_rows;
    for (size_t i = 0; i < length.size(); i++) {
      const real* from = inputs + (sequence + i) * s.tokens * width;
      real* to = s.inputs ? &packed[start[i] * width] : &x[start[i] * D];
      std::memcpy(to, from, length[i] * width * sizeof(real));
    }
    if (s.inputs) embedding.forward(m, packed.data(), width, x.data());
    for (size_t i = 0; i < length.size(); i++)
      for (int j = 0; j < length[i] * D; j += L) {
        real* at = &x[start[i] * D + j];
        store(at, load(at) + load(positions + j));
      }
    int layer = 0;
    for (Block& k : blocks) {
      norm(m, x.data(), k.first.data(), k.first_rstd.data());
      k.qkv.forward(m, k.first.data(), D, k.heads.data());
      attend(k);
      k.o.forward(m, k.mixed.data(), D, y.data());
      if (masks.pool) drop(masks, layer++, sequence, y.data(), y.data());
      join(m);
      norm(m, x.data(), k.second.data(), k.second_rstd.data());
      k.a.forward(m, k.second.data(), D, k.active.data());
      activate(m, k);
      k.b.forward(m, k.active.data(), s.D_A, y.data());
      if (masks.pool) drop(masks, layer++, sequence, y.data(), y.data());
      join(m);
    }
    norm(m, x.data(), last.data(), last_rstd.data());
    const int count = length.size();
    for (int i = 0; i < count; i++)
      for (int j = 0; j < D; j += L) {
        vec total = {};
        for (int t = 0; t < length[i]; t++) total += load(&last[(start[i] + t) * D + j]);
        store(&pooled[i * D + j], total * (1 / real(length[i])));
      }
    classifier1.forward(count, pooled.data(), D, hidden.data());
    const vec zero = {};
    for (int64_t i = 0; i < count * classifier1.wide; i += L) {
      const vec v = load(&hidden[i]);
      store(&hidden[i], v < zero ? zero : v);
    }
    classifier2.forward(count, hidden.data(), classifier1.wide, logits.data());
    return m;
  }

  void backward(int m, int64_t sequence, const Masks& masks) {
    const int D = s.D, count = length.size(), H = classifier1.wide;
    const vec zero = {};
    classifier2.backward(count, hidden.data(), H, g_logits.data(), g_wide.data());
    for (int64_t i = 0; i < count * H; i += L)
      store(&g_wide[i], load(&hidden[i]) <= zero ? zero : load(&g_wide[i]));
    classifier1.backward(count, pooled.data(), D, g_wide.data(), gy.data());
    for (int i = 0; i < count; i++)
      for (int t = 0; t < length[i]; t++)
        for (int j = 0; j < D; j += L)
          store(&y[(start[i] + t) * D + j], load(&gy[i * D + j]) * (1 / real(length[i])));
    std::fill(g.begin(), g.end(), real(0));
    norm_backward(m, y.data(), last.data(), last_rstd.data(), g.data());
    for (int number = s.blocks - 1; number >= 0; number--) {
      Block& k = blocks[number];
      const real* out = g.data();
      if (masks.pool) drop(masks, 2 * number + 1, sequence, out, y.data()), out = y.data();
      k.b.backward(m, k.active.data(), s.D_A, out, g_wide.data());
      activate_backward(m, k, g_wide.data());
      k.a.backward(m, k.second.data(), D, g_wide.data(), gy.data());
      norm_backward(m, gy.data(), k.second.data(), k.second_rstd.data(), g.data());
      out = g.data();
      if (masks.pool) drop(masks, 2 * number, sequence, out, y.data()), out = y.data();
      k.o.backward(m, k.mixed.data(), D, out, gy.data());
      attend_backward(k, g_wide.data());
      k.qkv.backward(m, k.first.data(), D, g_wide.data(), gy.data());
      norm_backward(m, gy.data(), k.first.data(), k.first_rstd.data(), g.data());
    }
    if (s.inputs)
      embedding.backward(m, packed.data(), s.inputs, g.data(), pulled ? g_packed.data() : nullptr);
  }

  // Add the gradient of the inputs of all these sequences to that of all sequences.
  void add_inputs(int64_t sequence, real* gradient) const {
    const int width = s.inputs ? s.inputs : s.D, wide = s.inputs ? embedding.across : s.D;
    const real* from = s.inputs ? g_packed.data() : g.data();
    for (int r = 0; r < packed_rows; r++)
      for (int j = 0; j < width; j++)
        gradient[(sequence * s.tokens + r) * width + j] += from[r * wide + j];
  }

  // The gradient of the loss of all these sequences, divided by the batch; their summed loss, and
  // how many are right.
  void loss(const int64_t* labels, real share, double* lost, int64_t* right) {
    const int wide = classifier2.wide;
    for (size_t i = 0; i < length.size(); i++) {
      const real* z = &logits[i * wide];
      real* gz = &g_logits[i * wide];
      int best = 0;
      for (int c = 1; c < s.classes; c++) best = z[c] > z[best] ? c : best;
      real total = 0;
      for (int c = 0; c < s.classes; c++) total += std::exp(z[c] - z[best]);
      const real log_total = std::log(total);
      for (int c = 0; c < wide; c++)
        gz[c] = c < s.classes ? (std::exp(z[c] - z[best] - log_total) - (c == labels[i])) * share : 0;
      *lost += log_total - (z[labels[i]] - z[best]);
      *right += best == labels[i];
    }
  }

  // As many sequences from `first` on as fit in ROWS, one at least; how many.
  int pack(int64_t first, const int64_t* lengths) {
    start.clear(), length.clear();
    int& used = packed_rows = 0;
    for (int64_t i = first; i < s.sequences; i++) {
      const int n = lengths ? lengths[i] : s.tokens;
      if (used && used + n > ROWS) break;
      start.push_back(used), length.push_back(n);
      used += n;
    }
    return length.size();
  }
};

// While it lives, subnormal numbers are flushed to zero, where the processor is an x86: each takes a
// hundred times as long as another number, and a sharp attention is full of them.
struct Flush {
#if defined(__SSE__)
  const unsigned before = _mm_getcsr();
  Flush() { _mm_setcsr(before | 0x8040); }
  ~Flush() { _mm_setcsr(before); }
#endif
};

// 0, or 1 if there is not enough memory: no exception may leave this file.
template <typename F>
int guarded(F f) {
  try {
    const Flush flush;
    f();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

extern "C" {

int lanes() { return L; }

// Logits of all nets for the same sequences, "n b classes".
int forward(const Sizes* sizes, const real* weights, const real* positions, const real* inputs,
            const int64_t* lengths, real* out) {
  return guarded([=] {
    const Sizes& s = *sizes;
    Net net(s, false);
    for (int64_t n = 0; n < s.nets; n++) {
      net.read(weights + n * s.weights, nullptr);
      for (int64_t first = 0; first < s.sequences;) {
        const int count = net.pack(first, lengths);
        net.forward(first, inputs, positions, {});
        for (int i = 0; i < count; i++)
          std::memcpy(out + (n * s.sequences + first + i) * s.classes,
                      &net.logits[i * net.classifier2.wide], s.classes * sizeof(real));
        first += count;
      }
    }
  });
}

// The gradient of sequences that all nets were asked, from that of their logits, "n b classes".
int pull(const Sizes* sizes, const real* weights, const real* positions, const real* inputs,
         const real* g_logits, real* gradient) {
  return guarded([=] {
    const Sizes& s = *sizes;
    const int64_t width = s.inputs ? s.inputs : s.D;
    std::memset(gradient, 0, s.sequences * s.tokens * width * sizeof(real));
    Net net(s, true);
    for (int64_t n = 0; n < s.nets; n++) {
      net.read(weights + n * s.weights, nullptr);
      for (int64_t first = 0; first < s.sequences;) {
        const int count = net.pack(first, nullptr);
        const int m = net.forward(first, inputs, positions, {});
        for (int i = 0; i < count; i++)
          std::memcpy(&net.g_logits[i * net.classifier2.wide],
                      g_logits + (n * s.sequences + first + i) * s.classes, s.classes * sizeof(real));
        net.backward(m, first, {});
        net.add_inputs(first, gradient);
        first += count;
      }
    }
  });
}

// Loss and right answers of each net on its own sequences, and the gradient of the mean loss.
int step(const Sizes* sizes, const real* weights, const real* positions, const real* inputs,
         const int64_t* lengths, const int64_t* labels, const real* pool, const int64_t* choice,
         real* gradient, double* losses, int64_t* rights) {
  return guarded([=] {
    const Sizes& s = *sizes;
    const int64_t width = s.inputs ? s.inputs : s.D, all = s.sequences * s.tokens;
    std::memset(gradient, 0, s.nets * s.weights * sizeof(real));
    Net net(s, false);
    for (int64_t n = 0; n < s.nets; n++) {
      net.read(weights + n * s.weights, gradient + n * s.weights);
      const Net::Masks masks{pool, choice + n * 2 * s.blocks * all, all};
      losses[n] = 0, rights[n] = 0;
      for (int64_t first = 0; first < s.sequences;) {
        const int count = net.pack(first, lengths ? lengths + n * s.sequences : nullptr);
        const int m = net.forward(first, inputs + n * all * width, positions, masks);
        net.loss(labels + n * s.sequences + first, 1 / real(s.sequences), losses + n, rights + n);
        net.backward(m, first, masks);
        first += count;
      }
    }
  });
}
}

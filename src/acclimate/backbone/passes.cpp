// Passes over memory that torch makes as several, each with a fork and a join of its threads.
//
// Dropout, the softmax of attention with its dropout, the end of a layer, the splitting of heads, cross-entropy and the
// sum of gradients in two precisions do little with each value, so what they cost is how often the values come from
// memory and go back. Here each is one pass by pieces that stay in the innermost cache. What a mask of dropout holds
// follows from a key, as in draws.py and dropout.py, so it is made again for the backward instead of being kept.
//
// Called by passes.py, compiled by compiled.py; every function does what its name says with torch in
// tests/backbone/test_passes.py. No NaN is lost. No pointer may be null but where it says so.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using bfloat16 = uint16_t;

const int64_t PIECE = 1024;  // values that are worked on at a time

// ---- numbers ----

inline float wide(float value) { return value; }

inline float wide(bfloat16 value) {
    uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

template <class T> T narrow(float value);
template <> inline float narrow<float>(float value) { return value; }

// To the nearest, ties to even. A NaN that the processor makes, or that comes from bfloat16, stays one: the bits
// that rounding adds to do not reach its sign.
template <> inline bfloat16 narrow<bfloat16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bfloat16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e to the power of a number that is not positive: 2^n times a polynomial on half a logarithm of 2 to either side
// (Cephes, expf), 1e-7 relative. In operations that compilers know for whole vectors.
inline float exponential(float x) {
    float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23, whose last bits are then the rounded number
    int32_t n;
    std::memcpy(&n, &shifted, sizeof n);
    float whole = shifted - 12582912.0f;
    float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = uint32_t(n + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : p * power;
}

// ---- dropout ----

// Fill in what draws.py makes of a key, from the word of that number on; a lane of 15 bits is for one value.
inline void draw(uint16_t* lanes, uint64_t key, int64_t first, int64_t words) {
    for (int64_t i = 0; i < words; ++i) {
        uint64_t word = key + uint64_t(first + i) * 0x9E3779B97F4A7C15u;
        word = (word ^ uint64_t(int64_t(word) >> 30)) * 0xBF58476D1CE4E5B9u;
        word = (word ^ uint64_t(int64_t(word) >> 27)) * 0x94D049BB133111EBu;
        word &= 0x7fff7fff7fff7fffu;
        std::memcpy(lanes + 4 * i, &word, sizeof word);
    }
}

// Lanes for the values from one place to another, which need not begin with a word.
class Lanes {
  public:
    explicit Lanes(int64_t most) : lanes_(most + 8) {}
    const uint16_t* between(uint64_t key, int64_t from, int64_t to) {
        int64_t first = from / 4;
        draw(lanes_.data(), key, first, (to + 3) / 4 - first);
        return lanes_.data() + (from - 4 * first);
    }

    const uint16_t* none() const { return lanes_.data(); }  // zeros, as long as nothing was drawn

  private:
    std::vector<uint16_t> lanes_;
};

template <class T> void thin(const T* from, T* to, int64_t count, const uint16_t* lanes, uint16_t cut) {
    #pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = lanes[i] >= cut ? from[i] : T(0);
}

template <class T>
void drop(const T* values, T* out, int64_t count, uint64_t key, uint16_t cut, float factor, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t from = 0; from < count; from += PIECE) {
        int64_t size = count - from < PIECE ? count - from : PIECE;
        uint16_t lanes[PIECE];
        draw(lanes, key, from / 4, (size + 3) / 4);
        const T* in = values + from;
        T* kept = out + from;
        #pragma omp simd
        for (int64_t i = 0; i < size; ++i) kept[i] = narrow<T>(lanes[i] >= cut ? wide(in[i]) * factor : 0.0f);
    }
}

// ---- attention ----

struct Bias {  // what is added to the scores, and how far it is to the next row, head and token; null: nothing
    const void* values;
    int64_t row, head, token;
};

template <class T> float largest(const T* scores, float* out, int64_t keys) {
    float most = -INFINITY;
    #pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < keys; ++i) {
        out[i] = wide(scores[i]);
        most = out[i] > most ? out[i] : most;
    }
    return most;
}

template <class T> float largest(const T* scores, const T* bias, float* out, int64_t keys) {
    float most = -INFINITY;
    #pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < keys; ++i) {
        out[i] = wide(scores[i]) + wide(bias[i]);
        most = out[i] > most ? out[i] : most;
    }
    return most;
}

// Scores (rows, heads, tokens, keys) become their softmax over the keys, in place; `kept` is what dropout leaves of
// it, without a factor (unused if `cut` is 0).
template <class T>
void weigh(T* scores, T* kept, const Bias& bias, int64_t rows, int64_t heads, int64_t tokens, int64_t keys,
           uint64_t key, uint16_t cut, int threads) {
    const int64_t lines = rows * heads * tokens, at_once = keys < PIECE ? PIECE / keys : 1;
    #pragma omp parallel num_threads(threads)
    {
        Lanes lanes(at_once * keys);
        std::vector<float> room(keys);
        float* exact = room.data();
        #pragma omp for schedule(static)
        for (int64_t first = 0; first < lines; first += at_once) {
            const int64_t end = first + at_once < lines ? first + at_once : lines;
            for (int64_t line = first; line < end; ++line) {
                T* mine = scores + line * keys;
                float most;
                if (bias.values) {
                    const int64_t token = line % tokens, head = line / tokens % heads, row = line / tokens / heads;
                    const T* added = static_cast<const T*>(bias.values);
                    most = largest(mine, added + row * bias.row + head * bias.head + token * bias.token, exact, keys);
                } else {
                    most = largest(mine, exact, keys);
                }
                float sum = 0;
                #pragma omp simd reduction(+ : sum)
                for (int64_t i = 0; i < keys; ++i) {
                    exact[i] = exponential(exact[i] - most);
                    sum += exact[i];
                }
                const float factor = 1 / sum;
                #pragma omp simd
                for (int64_t i = 0; i < keys; ++i) mine[i] = narrow<T>(exact[i] * factor);
            }
            if (cut) {
                const int64_t from = first * keys, to = end * keys;
                thin(scores + from, kept + from, to - from, lanes.between(key, from, to), cut);
            }
        }
    }
}

// The way back: `slopes` of what dropout left become those of the scores, in place; `kept` as above is made again.
template <class T>
void weigh_back(const T* weights, T* slopes, T* kept, int64_t lines, int64_t keys, uint64_t key, uint16_t cut,
                int threads) {
    const int64_t at_once = keys < PIECE ? PIECE / keys : 1;
    #pragma omp parallel num_threads(threads)
    {
        Lanes lanes(at_once * keys);
        #pragma omp for schedule(static)
        for (int64_t first = 0; first < lines; first += at_once) {
            const int64_t end = first + at_once < lines ? first + at_once : lines;
            if (cut) {
                const int64_t from = first * keys, to = end * keys;
                const uint16_t* lane = lanes.between(key, from, to);
                thin(weights + from, kept + from, to - from, lane, cut);
                thin(slopes + from, slopes + from, to - from, lane, cut);
            }
            for (int64_t line = first; line < end; ++line) {
                const T* weight = weights + line * keys;
                T* slope = slopes + line * keys;
                float shared = 0;
                #pragma omp simd reduction(+ : shared)
                for (int64_t i = 0; i < keys; ++i) shared += wide(slope[i]) * wide(weight[i]);
                #pragma omp simd
                for (int64_t i = 0; i < keys; ++i) {
                    slope[i] = narrow<T>(wide(weight[i]) * (wide(slope[i]) - shared));
                }
            }
        }
    }
}

// Tokens with their heads side by side become (rows, heads, tokens, width), one matrix for each row and head. `place`
// says for each of the rows x tokens which one it is; null: the same. `head` and `token` are how far it is to the next.
template <class T>
void split_heads(const T* from, T* to, const int64_t* place, int64_t rows, int64_t heads, int64_t tokens,
                 int64_t width, int64_t row, int64_t head, int64_t token, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t here = 0; here < rows * tokens; ++here) {
        const int64_t in = here / tokens, at = here % tokens;
        const T* values = from + (place ? place[here] * token : in * row + at * token);
        T* out = to + (in * heads * tokens + at) * width;
        for (int64_t i = 0; i < heads; ++i) {
            std::memcpy(out + i * tokens * width, values + i * head, sizeof(T) * width);
        }
    }
}

// And back: `count` tokens (heads, width) each; `place` says which of the rows x tokens each one is; null: the same.
template <class T>
void merge_heads(const T* from, T* to, const int64_t* place, int64_t count, int64_t heads, int64_t tokens,
                 int64_t width, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t here = 0; here < count; ++here) {
        const int64_t there = place ? place[here] : here, in = there / tokens, at = there % tokens;
        const T* values = from + (in * heads * tokens + at) * width;
        for (int64_t i = 0; i < heads; ++i) {
            std::memcpy(to + (here * heads + i) * width, values + i * tokens * width, sizeof(T) * width);
        }
    }
}

// ---- the end of a layer ----

// Sums (rows, width) of `residual` and what dropout leaves of `update`, times `factor`; `out` is their layer
// normalisation, `means` and `scales` (one over the deviation) those of each row.
template <class T>
void add_and_norm(const T* update, const T* residual, const T* weight, const T* bias, T* sums, T* out, float* means,
                  float* scales, int64_t rows, int64_t width, float epsilon, uint64_t key, uint16_t cut, float factor,
                  int threads) {
    const int64_t at_once = width < PIECE ? PIECE / width : 1;
    #pragma omp parallel num_threads(threads)
    {
        Lanes lanes(at_once * width);
        #pragma omp for schedule(static)
        for (int64_t first = 0; first < rows; first += at_once) {
            const int64_t end = first + at_once < rows ? first + at_once : rows;
            const uint16_t* lane = cut ? lanes.between(key, first * width, end * width) : lanes.none();
            for (int64_t row = first; row < end; ++row) {
                const int64_t start = row * width;
                const T *more = update + start, *stream = residual + start;
                T *sum = sums + start, *normal = out + start;
                const uint16_t* mine = lane + (row - first) * width;
                float total = 0, squares = 0;
                #pragma omp simd reduction(+ : total)
                for (int64_t i = 0; i < width; ++i) {
                    sum[i] = narrow<T>(wide(stream[i]) + (mine[i] >= cut ? wide(more[i]) * factor : 0.0f));
                    total += wide(sum[i]);
                }
                const float mean = total / float(width);
                #pragma omp simd reduction(+ : squares)
                for (int64_t i = 0; i < width; ++i) squares += (wide(sum[i]) - mean) * (wide(sum[i]) - mean);
                const float scale = 1 / std::sqrt(squares / float(width) + epsilon);
                #pragma omp simd
                for (int64_t i = 0; i < width; ++i) {
                    normal[i] = narrow<T>((wide(sum[i]) - mean) * scale * wide(weight[i]) + wide(bias[i]));
                }
                means[row] = mean;
                scales[row] = scale;
            }
        }
    }
}

// The way back: from `slopes` of the normalised rows those of `update`, `residual`, weight and bias. Without dropout
// the first two are the same, and `for_update` is unused.
template <class T>
void add_and_norm_back(const T* slopes, const T* sums, const float* means, const float* scales, const T* weight,
                       T* for_update, T* for_residual, T* for_weight, T* for_bias, int64_t rows, int64_t width,
                       uint64_t key, uint16_t cut, float factor, int threads) {
    const int64_t at_once = width < PIECE ? PIECE / width : 1;
    const int64_t pieces = (rows + at_once - 1) / at_once, share = (pieces + threads - 1) / threads;
    std::vector<float> parts(2 * width * threads);  // of weight and bias, for each thread
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; ++part) {
        Lanes lanes(at_once * width);
        float *weights = parts.data() + 2 * width * part, *biases = weights + width;
        const int64_t last = (part + 1) * share * at_once < rows ? (part + 1) * share * at_once : rows;
        for (int64_t first = part * share * at_once; first < last; first += at_once) {
            const int64_t end = first + at_once < last ? first + at_once : last;
            const uint16_t* lane = cut ? lanes.between(key, first * width, end * width) : nullptr;
            for (int64_t row = first; row < end; ++row) {
                const int64_t start = row * width;
                const T *slope = slopes + start, *sum = sums + start;
                T* back = for_residual + start;
                const float mean = means[row], scale = scales[row];
                float all = 0, along = 0;
                #pragma omp simd reduction(+ : all, along)
                for (int64_t i = 0; i < width; ++i) {
                    const float normal = (wide(sum[i]) - mean) * scale, own = wide(slope[i]);
                    weights[i] += own * normal;
                    biases[i] += own;
                    all += own * wide(weight[i]);
                    along += own * wide(weight[i]) * normal;
                }
                all /= float(width);
                along /= float(width);
                #pragma omp simd
                for (int64_t i = 0; i < width; ++i) {
                    const float normal = (wide(sum[i]) - mean) * scale;
                    back[i] = narrow<T>(scale * (wide(slope[i]) * wide(weight[i]) - all - normal * along));
                }
                if (!cut) continue;
                const uint16_t* mine = lane + (row - first) * width;
                T* thinned = for_update + start;
                #pragma omp simd
                for (int64_t i = 0; i < width; ++i) {
                    thinned[i] = narrow<T>(mine[i] >= cut ? wide(back[i]) * factor : 0.0f);
                }
            }
        }
    }
    for (int64_t i = 0; i < width; ++i) {
        float weights = 0, biases = 0;
        for (int64_t part = 0; part < threads; ++part) {
            weights += parts[2 * width * part + i];
            biases += parts[2 * width * part + width + i];
        }
        for_weight[i] = narrow<T>(weights);
        for_bias[i] = narrow<T>(biases);
    }
}

// ---- cross-entropy ----

// Losses (items) of logits (items, classes), each with its own label; `most` and `shares` are what the way back needs.
// Says how many labels are no class; their losses are NaN.
template <class T>
int64_t cross_entropy(const T* logits, const int64_t* labels, float* losses, float* most, float* shares,
                      int64_t items, int64_t classes, int threads) {
    int64_t strangers = 0;
    #pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : strangers)
    for (int64_t item = 0; item < items; ++item) {
        const T* mine = logits + item * classes;
        const int64_t label = labels[item];
        float high = -INFINITY;
        #pragma omp simd reduction(max : high)
        for (int64_t i = 0; i < classes; ++i) high = wide(mine[i]) > high ? wide(mine[i]) : high;
        double total = 0;  // of pieces: a float has too few digits for as many classes
        for (int64_t from = 0; from < classes; from += PIECE) {
            const int64_t end = from + PIECE < classes ? from + PIECE : classes;
            float part = 0;
            #pragma omp simd reduction(+ : part)
            for (int64_t i = from; i < end; ++i) part += exponential(wide(mine[i]) - high);
            total += part;
        }
        const bool strange = label < 0 || label >= classes;
        strangers += strange;
        losses[item] = strange ? NAN : float(std::log(total) + double(high) - double(wide(mine[label])));
        most[item] = high;
        shares[item] = float(1 / total);
    }
    return strangers;
}

// The way back: the slopes of the logits, times `factor`; those of rows beyond `items` are zero.
template <class T>
void cross_entropy_back(const T* logits, const int64_t* labels, const float* most, const float* shares, T* slopes,
                        int64_t items, int64_t rows, int64_t classes, float factor, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const T* mine = logits + row * classes;
        T* slope = slopes + row * classes;
        if (row >= items) {
            std::memset(slope, 0, sizeof(T) * classes);
            continue;
        }
        const float high = most[row], share = shares[row] * factor;
        #pragma omp simd
        for (int64_t i = 0; i < classes; ++i) slope[i] = narrow<T>(exponential(wide(mine[i]) - high) * share);
        const int64_t label = labels[row];
        slope[label] = narrow<T>(exponential(wide(mine[label]) - high) * share - factor);
    }
}

// ---- gradients ----

void add(float* total, const bfloat16* part, int64_t count, int threads) {
    #pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; ++i) total[i] += wide(part[i]);
}

}  // namespace

#define FOR(T, NAME)                                                                                                 \
    extern "C" void drop_##NAME(const T* values, T* out, int64_t count, uint64_t key, int cut, float factor,         \
                                int threads) {                                                                       \
        drop(values, out, count, key, uint16_t(cut), factor, threads);                                               \
    }                                                                                                                \
    extern "C" void weigh_##NAME(T* scores, T* kept, const void* bias, int64_t row, int64_t head, int64_t token,     \
                                 int64_t rows, int64_t heads, int64_t tokens, int64_t keys, uint64_t key, int cut,   \
                                 int threads) {                                                                      \
        weigh(scores, kept, Bias{bias, row, head, token}, rows, heads, tokens, keys, key, uint16_t(cut), threads);   \
    }                                                                                                                \
    extern "C" void weigh_back_##NAME(const T* weights, T* slopes, T* kept, int64_t lines, int64_t keys,             \
                                      uint64_t key, int cut, int threads) {                                          \
        weigh_back(weights, slopes, kept, lines, keys, key, uint16_t(cut), threads);                                 \
    }                                                                                                                \
    extern "C" void split_heads_##NAME(const T* from, T* to, const int64_t* place, int64_t rows, int64_t heads,      \
                                       int64_t tokens, int64_t width, int64_t row, int64_t head, int64_t token,      \
                                       int threads) {                                                                \
        split_heads(from, to, place, rows, heads, tokens, width, row, head, token, threads);                         \
    }                                                                                                                \
    extern "C" void merge_heads_##NAME(const T* from, T* to, const int64_t* place, int64_t count, int64_t heads,     \
                                       int64_t tokens, int64_t width, int threads) {                                 \
        merge_heads(from, to, place, count, heads, tokens, width, threads);                                          \
    }                                                                                                                \
    extern "C" void add_and_norm_##NAME(const T* update, const T* residual, const T* weight, const T* bias, T* sums, \
                                        T* out, float* means, float* scales, int64_t rows, int64_t width,            \
                                        float epsilon, uint64_t key, int cut, float factor, int threads) {           \
        add_and_norm(update, residual, weight, bias, sums, out, means, scales, rows, width, epsilon, key,            \
                     uint16_t(cut), factor, threads);                                                                \
    }                                                                                                                \
    extern "C" void add_and_norm_back_##NAME(const T* slopes, const T* sums, const float* means,                     \
                                             const float* scales, const T* weight, T* for_update, T* for_residual,   \
                                             T* for_weight, T* for_bias, int64_t rows, int64_t width, uint64_t key,  \
                                             int cut, float factor, int threads) {                                   \
        add_and_norm_back(slopes, sums, means, scales, weight, for_update, for_residual, for_weight, for_bias, rows, \
                          width, key, uint16_t(cut), factor, threads);                                               \
    }                                                                                                                \
    extern "C" int64_t cross_entropy_##NAME(const T* logits, const int64_t* labels, float* losses, float* most,      \
                                            float* shares, int64_t items, int64_t classes, int threads) {            \
        return cross_entropy(logits, labels, losses, most, shares, items, classes, threads);                         \
    }                                                                                                                \
    extern "C" void cross_entropy_back_##NAME(const T* logits, const int64_t* labels, const float* most,             \
                                              const float* shares, T* slopes, int64_t items, int64_t rows,           \
                                              int64_t classes, float factor, int threads) {                          \
        cross_entropy_back(logits, labels, most, shares, slopes, items, rows, classes, factor, threads);             \
    }

FOR(float, float32)
FOR(bfloat16, bfloat16)

extern "C" void add_bfloat16(float* total, const bfloat16* part, int64_t count, int threads) {
    add(total, part, count, threads);
}

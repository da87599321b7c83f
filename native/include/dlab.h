/* The C ABI between the lab and compiled candidates, version 1.2. What 1.1 and 1.2 add is marked so; older libraries go on working.
 *
 * One header for three readers: C11, C++17 and cffi. The text between the two cdef markers is the cffi cdef, so it holds only plain
 * declarations. A library implements the handshake and either some operations, or the fused drafter, or both, and says so in
 * dlab_info.flags; operations it does not implement are simply absent. A library answers the version it was written against.
 *
 * Rules for implementers and callers:
 *  - Every function returns a dlab_status and lets no exception, abort or exit cross the boundary. When it fails, it has written
 *    nothing to its outputs, and dlab_last_error returns a text that names the operation, the tensor, what was expected and what
 *    was found.
 *  - A tensor is row-major, slowest dimension first, strides in bytes. The first dimension may be strided (a row never shorter than
 *    its values); everything inside a row is dense. Other layouts are refused with DLAB_E_UNSUPPORTED, never misread.
 *  - A quantised weight is [rows, values]: shape in values, stride_bytes[0] = bytes per row; values is a multiple of the block.
 *  - Outputs are allocated by the caller with the exact shape and must not overlap inputs, except that y of dlab_add and dlab_rope
 *    may be its first input.
 *  - Plain pointers (positions, ids, visibility) are dense host memory.
 *  - The library keeps no pointer after a call, except weights given to dlab_drafter_create with DLAB_BORROW and, on backends
 *    without device memory, tensors given to dlab_upload.
 *  - A context serves one thread at a time (a second caller gets DLAB_E_STATE); different contexts are independent. The same inputs
 *    and options give the same bits, whatever the number of threads, and a row's bits do not depend on the other rows.
 */
#ifndef DLAB_H
#define DLAB_H
#include <stddef.h>
#include <stdint.h>
#ifndef DLAB_API
#if defined(__GNUC__)
#define DLAB_API __attribute__((visibility("default")))
#else
#define DLAB_API
#endif
#endif
#ifdef __cplusplus
extern "C" {
#endif
/*@cdef-begin*/
#define DLAB_ABI_MAJOR 1
#define DLAB_ABI_MINOR 2

enum dlab_status {
  DLAB_OK = 0,
  DLAB_E_ARG = 1,         /* a value out of range, a null pointer, an unknown key */
  DLAB_E_SHAPE = 2,       /* shapes that do not fit together */
  DLAB_E_DTYPE = 3,       /* a dtype this operand cannot have */
  DLAB_E_UNSUPPORTED = 4, /* valid, but not implemented by this library */
  DLAB_E_STATE = 5,       /* not now: a context in use, rows that are gone, a dump callback that said stop */
  DLAB_E_NOMEM = 6,
  DLAB_E_NO_DEVICE = 7,
  DLAB_E_DEVICE = 8,      /* the device or its driver failed */
  DLAB_E_INTERNAL = 9
};

/* Numbers are the GGUF type ids. */
enum dlab_dtype {
  DLAB_F32 = 0,
  DLAB_F16 = 1,
  DLAB_Q4_0 = 2,
  DLAB_Q4_1 = 3,
  DLAB_Q5_0 = 6,
  DLAB_Q8_0 = 8,
  DLAB_Q4_K = 12,
  DLAB_Q5_K = 13,
  DLAB_Q6_K = 14,
  DLAB_I32 = 26,
  DLAB_I64 = 27,
  DLAB_F64 = 28,
  DLAB_BF16 = 30
};

enum dlab_capability { DLAB_CAP_OPS = 1, DLAB_CAP_FUSED = 2, DLAB_CAP_DUMPS = 4, DLAB_CAP_DEVICE = 8, DLAB_CAP_EMULATED = 16 };
enum dlab_place { DLAB_HOST = 0, DLAB_DEVICE = 1 };
enum dlab_rope_style { DLAB_ROPE_NEOX = 1, DLAB_ROPE_INTERLEAVED = 2 };
enum dlab_gate_kind { DLAB_GATE_SIGMOID = 1, DLAB_GATE_SOFTPLUS = 2 };
enum dlab_activation { DLAB_ACT_SILU = 0, DLAB_ACT_GELU_TANH = 1 };
enum dlab_drafter_flag { DLAB_BORROW = 1 };

typedef struct dlab_tensor {
  void* data;
  int64_t shape[4];
  int64_t stride_bytes[4];
  int32_t dtype;    /* enum dlab_dtype */
  int32_t ndim;     /* 1..4 */
  int32_t place;    /* enum dlab_place; DLAB_DEVICE only for tensors made by dlab_upload */
  int32_t reserved; /* 0 */
} dlab_tensor;

typedef struct dlab_named_tensor {
  const char* name;
  dlab_tensor tensor;
} dlab_named_tensor;

/* One recorded stage. The tensor is host memory in its stored dtype, valid only during the callback. */
typedef struct dlab_dump {
  uint32_t struct_size;
  uint32_t reserved;
  const char* stage; /* full path, such as "draft.L3.q_rope" */
  int64_t row0;      /* index of the first row; for context rows their first absolute position */
  dlab_tensor tensor;
} dlab_dump;

/* Returns 0 to go on; anything else ends the call with DLAB_E_STATE. */
typedef int32_t (*dlab_dump_fn)(void* user, const dlab_dump* dump);

typedef struct dlab_info {
  uint32_t struct_size; /* set by the caller; the library fills no more than this */
  uint32_t abi_major;
  uint32_t abi_minor;
  uint32_t flags;          /* enum dlab_capability */
  const char* name;
  const char* version;
  const char* arithmetic;  /* "key=value,key=value", the declared arithmetic */
  const char* source_hash; /* SHA-256 of the sources it was built from, or "" */
} dlab_info;

typedef struct dlab_ctx dlab_ctx;
typedef struct dlab_drafter dlab_drafter;

/* handshake */

DLAB_API int32_t dlab_get_info(dlab_info* out);
/* sizeof(type) and offsetof(type, field) as the library's compiler sees them. */
DLAB_API int32_t dlab_layout(const char* type_name, const char* field, int64_t* size, int64_t* offset);
/* options: key=value lines, may be NULL. threads=N (0: one per core) is known to every library; unknown keys are an error.
 * The CPU library also takes isa=NAME, to run the kernels of a lesser instruction set than the one it would choose. */
DLAB_API int32_t dlab_open(const char* options, dlab_ctx** out);
DLAB_API void dlab_close(dlab_ctx* ctx);
/* Text of the calling thread's last failed call, valid until its next failure. ctx may be NULL. */
DLAB_API const char* dlab_last_error(dlab_ctx* ctx);
/* Calls fn for every stage of the fused drafter that matches one of the comma separated glob patterns ("*": all). fn = NULL: none. */
DLAB_API int32_t dlab_set_dump(dlab_ctx* ctx, dlab_dump_fn fn, void* user, const char* patterns);

/* device memory, for benchmarks: operands that are not copied at each call */

/* Makes a dense copy of host on the device (a backend without device memory keeps the pointer). Operations take either kind; an
 * output on the device is not waited for. */
DLAB_API int32_t dlab_upload(dlab_ctx* ctx, const dlab_tensor* host, dlab_tensor* device);
/* Waits for all work and copies device into host (same shape and dtype). */
DLAB_API int32_t dlab_download(dlab_ctx* ctx, const dlab_tensor* device, dlab_tensor* host);
DLAB_API int32_t dlab_release(dlab_ctx* ctx, dlab_tensor* device);

/* operations: f32 in and out unless said otherwise; "weight" is any of F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q4_K Q5_K Q6_K */

/* w weight [N,K] -> y f32 [N,K]: the f32 value the format defines, bit for bit. */
DLAB_API int32_t dlab_dequant(dlab_ctx* ctx, const dlab_tensor* w, dlab_tensor* y);
/* x to y of the same shape, each F32, F16 or BF16; round to nearest even, NaN stays NaN. */
DLAB_API int32_t dlab_convert(dlab_ctx* ctx, const dlab_tensor* x, dlab_tensor* y);
/* y = x / sqrt(mean(x^2) + eps) * (w + weight_offset) over each of n_groups equal groups of a row of x [R,n].
 * w weight [n], or [n/n_groups] shared by the groups, or NULL for none. */
DLAB_API int32_t dlab_rms_norm(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, double eps, double weight_offset,
                               int32_t n_groups, dlab_tensor* y);
/* y[m,n] = sum_k x[m,k] w[n,k] + bias[n]. x [M,K], w weight [N,K], bias weight [N] or NULL, y [M,N]. */
DLAB_API int32_t dlab_linear(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* w, const dlab_tensor* bias, dlab_tensor* y);
/* Rotates the first rot values of each head of x [R,H,D] by pos[r] * inv_freq[i]; the rest is copied. cos and sin times mscale.
 * Pairs (i, i + rot/2) for NEOX, (2i, 2i+1) for INTERLEAVED. pos [R], inv_freq [rot/2]. */
DLAB_API int32_t dlab_rope(dlab_ctx* ctx, const dlab_tensor* x, const int64_t* pos, const double* inv_freq, int32_t rot, int32_t style,
                           double mscale, dlab_tensor* y);
/* out = softmax(scale * q k^T over visible cells) v, query head h reading k/v head h / (Hq/Hk). q, out [R,Hq,D]; k, v [C,Hk,D] in
 * F32, F16 or BF16; visible [R,C] bytes or NULL for all; sinks weight [Hq] (a logit that joins max and denominator) or NULL.
 * A row that sees no cell gives 0. */
DLAB_API int32_t dlab_attention(dlab_ctx* ctx, const dlab_tensor* q, const dlab_tensor* k, const dlab_tensor* v, const uint8_t* visible,
                                double scale, const dlab_tensor* sinks, dlab_tensor* out);
/* y = x * sigmoid(g) or x * softplus(g). x, y [R,H,D]; g [R,H] (one logit per head) or [R,H*D]. */
DLAB_API int32_t dlab_gate(dlab_ctx* ctx, const dlab_tensor* x, const dlab_tensor* g, int32_t kind, dlab_tensor* y);
/* y = act(gate) * up, all [R,n]. */
DLAB_API int32_t dlab_swiglu(dlab_ctx* ctx, const dlab_tensor* gate, const dlab_tensor* up, int32_t act, dlab_tensor* y);
DLAB_API int32_t dlab_add(dlab_ctx* ctx, const dlab_tensor* a, const dlab_tensor* b, dlab_tensor* y);
/* y[r] = scale * table[ids[r]]; table weight [V,n], y [rows,n]. */
DLAB_API int32_t dlab_gather(dlab_ctx* ctx, const dlab_tensor* table, const int32_t* ids, int32_t rows, double scale, dlab_tensor* y);
/* Joins parts [R,w_i] along the last axis into y [R, sum w_i]. */
DLAB_API int32_t dlab_concat(dlab_ctx* ctx, const dlab_tensor* parts, int32_t n_parts, dlab_tensor* y);
/* The two largest values of each row of x [R,V]: ids [R,2], values [R,2]. Ties: the lowest index. NaN is never chosen; where nothing
 * can be, the id is -1 and the value NaN. */
DLAB_API int32_t dlab_top2(dlab_ctx* ctx, const dlab_tensor* x, int32_t* ids, float* values);
/* y = softmax(scale * x) over each row of x [R,n]. */
DLAB_API int32_t dlab_softmax(dlab_ctx* ctx, const dlab_tensor* x, double scale, dlab_tensor* y);
/* y = cap * tanh(scale * x / cap), or scale * x when cap <= 0. x, y [R,n]. */
DLAB_API int32_t dlab_softcap(dlab_ctx* ctx, const dlab_tensor* x, double scale, double cap, dlab_tensor* y);
/* Greedy acceptance: accepted = the number of leading drafts[i] equal to argmax[i]; bonus = argmax[accepted].
 * drafts [n], argmax [n+1]. */
DLAB_API int32_t dlab_accept(dlab_ctx* ctx, const int32_t* drafts, int32_t n, const int32_t* argmax, int32_t* accepted, int32_t* bonus);

/* operations by name (1.1): what the targets and the drafters' heads need beyond the entry points above */

/* Names of the operations that dlab_apply knows, comma separated; a constant of the library. */
DLAB_API const char* dlab_operations(void);
/* Runs the operation `op` into y, which has the result's exact shape. `in`: its operands in the order listed, each a tensor of the
 * listed shape; `params`: its numbers in the order listed, whole ones exact. DLAB_E_UNSUPPORTED for an unknown name.
 *
 * Operands are F32 (R rows, any n), "weight" as above, "ids" I32 or I64, I64 where it says so; a weight of more than two axes has
 * them flattened to [rows, in] but for its last. An operand in brackets may be left out, one with dots comes any number of times.
 * y is F32, or I32 where it says ids. relu, sigmoid and the like as usual; sums run in the declared order.
 *
 *  moves (bit for bit):
 *   replicate     x [R,n]; copies -> y [R,copies*n]: x side by side
 *   join          x [R,n_i]...; -> y [R,sum of n_i]: side by side
 *   cells         x [C_i,H,D]...; -> y [sum of C_i,H,D]: one after the other
 *   part          x [R,H,n]; start, stop -> y [R,H,stop-start]: entries start .. stop-1 of every head
 *   ngram         table weight [T_i,n]..., ids I64 [R], history I64 [size-1], multipliers I64 [size], sizes I64 [h], offsets I64 [h];
 *                 end -> y [R,h*n]: the rows of the joined table that the hashes of the n-grams ending in each id select, one per
 *                 head, h/(size-1) heads for each length from 2 on. mixed = ids[r]*multipliers[0], then for shift 1 .. size-1 ^=
 *                 (the id shift places before)*multipliers[shift]; row = mixed % sizes[head] + offsets[head]. A predecessor that is
 *                 `end`, or lies before one, counts as `end`.
 *   to_target     ids [R], target_ids I64 [V]; -> y ids [R]: target_ids[ids[r]], -1 where ids[r] is outside 0 .. V-1
 *  elementwise:
 *   sigmoid       x [...]; -> y [...]: 1 / (1 + exp(-x))
 *   silu          x [...]; scale -> y [...]: g sigmoid(g), g = scale x
 *   squash        x [...]; scale, gain -> y [...]: gain sigmoid(scale x)
 *   decay         a [R,H], a_log weight [H], dt_bias weight [H]; -> y [R,H]: -exp(a_log) softplus(a + dt_bias)
 *   l2_norm       x [...,n]; eps, scale -> y [...,n]: scale x / sqrt(sum(x^2) + eps) over the last axis
 *  streams (S side by side in a row):
 *   hc_read       x [R,S*n], g [R,S*n]; streams -> y [R,n]: mean over the streams of sigmoid(g) x
 *   hc_write      x [R,S*n], v [R,n], inject [R,S]; -> y [R,S*n]: x + inject[s] v
 *   ple_gate      key [R,S*n], query [R,S*n]; streams -> y [R,S]: sign(d) sqrt(max(|d|, 1e-6)), d = key . query / sqrt(n); 0 for d = 0
 *   stream_gate   x [R,n], g [R,S]; -> y [R,S*n]: sigmoid(g[s]) x
 *  sequences (row after row):
 *   short_conv    x [R,...], history [(K-1)*dilation,...], w weight [channels,K]; dilation -> y [R,...]:
 *                 y[t] = sum over k of w[k] x[t - dilation*(K-1-k)], history being the rows before x
 *   dynamic_conv  x [R,n], kernel [R,2,K,G], base weight [2*K,n]; side -> y [R,n]: y[t] = sum over j of
 *                 (base[side,j] + kernel[t,side,j,c/(n/G)]) x[t-j], rows before the block being 0
 *   delta_state   start [H,D,n], k [R,Hk,D], v [R,H,n], decay [R,H], beta [R,H]; -> y [R,H,D,n]: the state after every row,
 *                 S = exp(decay) S, S += k (beta (v - S^T k))^T; head h uses key head h/(H/Hk)
 *   delta_read    state [R,H,D,n], q [R,Hk,D]; -> y [R,H,n]: S^T q
 *  selection (ties: the lowest index; NaN comes last):
 *   block_mean    x [C,H,D]; ratio -> y [C/ratio,H,D]: the mean of `ratio` consecutive cells, complete blocks only
 *   index_scores  q [R,H,D], k [B,1,D], pos I64 [R]; ratio, scale -> y [R,B]: scale times the sum over heads of relu(q . k) for the
 *                 blocks complete at pos ((pos+1)/ratio > b), else 0
 *   select_cells  scores [R,B], pos I64 [R]; cells, ratio, budget -> y ids [R,cells]: 1 for the cells of the budget/ratio complete
 *                 blocks of highest score, and for those from the last complete block on up to pos; else 0
 *   select        scores [R,E], [bias weight [E]]; k -> y ids [R,k]: the k largest of scores + bias, largest first
 *   choose        scores [R,c], candidates ids [R,c]; -> y ids [R]: the candidate of the largest score, -1 where all are NaN
 *  experts:
 *   expert_weights  scores [R,E], selected ids [R,k]; normalise, scale -> y [R,k]: scale times the selected scores, divided by their sum
 *                 where normalise is 1
 *   expert_linear x [R,K] or [R,k,K], selected ids [R,k], w weight [N,K]... (one per expert); -> y [R,k,N]: each row through the
 *                 matrices it selected
 *   expert_sum    x [R,k,n], weights [R,k]; -> y [R,n]: weighted sum in the order of the ranks
 *  drafter heads (an id outside its table gives NaN):
 *   selector_scores  logits [R,V], candidates ids [R,c], hidden [R,n], previous ids [R], predecessor weight [V,n],
 *                 successor weight [V,n]; -> y [R,c]: logits[id] + sum(predecessor[previous] hidden successor[id])
 *   markov_state  state [R,n], joint [R,3,n]; -> y [R,n]: sigmoid(a) state + (1 - sigmoid(a)) tanh(b), joint = a, b, c
 *   markov_output joint [R,3,n]; -> y [R,n]: tanh(c)
 */
DLAB_API int32_t dlab_apply(dlab_ctx* ctx, const char* op, const dlab_tensor* in, int32_t n_in, const double* params, int32_t n_params,
                            dlab_tensor* y);

/* fused drafter */

/* config: key=value lines; every key is required unless noted and an unknown key is an error:
 *   family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, block_size, mask_token_id, n_taps, target_hidden, eps,
 *   rope.theta, rope.dim, rope.style (neox | interleaved), attn_scale, causal and sliding (comma lists of 0/1, one per layer),
 *   window_rule (none | W_LT | W_LT_left | W_LE | W_LT_ctx | W_ANCHOR | W_RING | SINK_RING), window (not for none), sink (only
 *   SINK_RING), embed_scale, output_multiplier, softcap (0: none).
 * Optional keys: tap_norm, ctx_layernorm (0 | 1), attn_gate (none | sigmoid | softplus); and of 1.1: window_rule=W_CACHE (a rotating
 *   cache of W - 1 rows: an append of S rows leaves W - 2 of those it held and takes the last min(S, W - 1); the block sees what it
 *   holds), anchor_layout (fill_in | predict_next: whether the block's first row
 *   drafts), draft_vocab (rows of the head where they are fewer than vocab), conv_taps and conv_groups (DFlash 2's convolutions
 *   around both sublayers), selector_rank and selector_top_k, markov (vanilla | gated | rnn) and markov_rank, confidence (hidden |
 *   markov). A selector and a Markov or confidence head exclude each other.
 * weights, by role: fc, hidden_norm, norm, embedding, head, layers.N.{input_norm,q,k,v,o,post_norm,gate,up,down,q_norm,k_norm} and
 *   optionally layers.N.{q_bias,k_bias,v_bias,o_bias}; with their keys: tap_norm, layers.N.attn_gate, and of 1.1:
 *   layers.N.{attn_conv,mlp_conv}_base [2*taps,hidden] and _kernel [2*taps*groups,hidden], selector.{predecessor,successor}
 *   [vocab,rank], selector.hidden [rank,hidden], markov.w1 [vocab,rank], markov.w2 [head rows,rank], markov.gate [rank,hidden+rank]
 *   and markov.gate_bias (gated; inputs hidden, embedding), markov.joint [3*rank,2*rank+hidden] and markov.joint_bias (rnn; inputs
 *   state, embedding, hidden), confidence [1,hidden] or [1,hidden+rank] and confidence_bias, target_ids I64 [head rows] (a draft
 *   vocabulary's ids in the target). Biases may be absent. Copied, unless flags has DLAB_BORROW.
 * A drafter belongs to its context and must be destroyed before it. */
DLAB_API int32_t dlab_drafter_create(dlab_ctx* ctx, const char* config, const dlab_named_tensor* weights, int32_t n, uint32_t flags,
                                     dlab_drafter** out);
/* The configuration in force as key=value lines. *need: bytes with the final 0; buf may be NULL, else cap must be at least *need. */
DLAB_API int32_t dlab_drafter_describe(dlab_drafter* d, char* buf, size_t cap, size_t* need);
/* Commits context rows pos0 .. pos0+T-1 from taps f32 [T, n_taps*target_hidden]. pos0 is the length, or lower to overwrite rows that
 * are still held; else DLAB_E_STATE. */
DLAB_API int32_t dlab_drafter_append(dlab_drafter* d, const dlab_tensor* taps, int64_t pos0);
/* Runs the block: block_ids [rows] at positions pos .. pos+rows-1. ids [rows]: argmax per row (-1 if all NaN); top2 [rows,2]: the two
 * largest logits, or NULL; logits f32 [rows,vocab] or NULL. Only committed rows persist; a SINK_RING evicts at the end. */
DLAB_API int32_t dlab_drafter_propose(dlab_drafter* d, const int32_t* block_ids, int32_t rows, int64_t pos, int32_t* ids, float* top2,
                                      dlab_tensor* logits);
/* The drafts of the last propose (1.1): for each drafted row (all rows, or all but the first for anchor_layout=fill_in) the id the
 * drafter proposes, in the target's vocabulary: the pick, or what a selector or Markov head chose. confidence: one value per draft
 * where there is a confidence head, else untouched; may be NULL. *n: capacity on entry, count on return. */
DLAB_API int32_t dlab_drafter_drafts(dlab_drafter* d, int32_t* drafts, float* confidence, int32_t* n);
/* The end of a greedy round in one call (1.2; a library may leave it out). The window is the anchor at position pos and drafts [n]
 * behind it; logits f32 [n+1,vocab] are the target's, taps f32 [n+1, n_taps*target_hidden] its captured states of the same rows.
 * picks [n+1]: argmax per row (lowest index on ties, -1 if all NaN); accepted and bonus as of dlab_accept. Then rows pos and later are
 * forgotten and the committed ones, pos .. pos+accepted, become context: what dlab_drafter_append of the first accepted+1 rows of taps
 * at pos does, bit for bit. A cut at a budget or a stop is a dlab_drafter_truncate behind it. As a whole or not at all. */
DLAB_API int32_t dlab_drafter_verify(dlab_drafter* d, const int32_t* drafts, int32_t n, const dlab_tensor* logits,
                                     const dlab_tensor* taps, int64_t pos, int32_t* picks, int32_t* accepted, int32_t* bonus);
/* Forgets rows length and later; DLAB_E_STATE when rows before it were already evicted. */
DLAB_API int32_t dlab_drafter_truncate(dlab_drafter* d, int64_t length);
/* The cells held by a layer: k, v f32 [n,kv_heads,head_dim], positions [n]. With k, v and positions NULL only *n is set; otherwise *n
 * is the capacity in rows on entry. */
DLAB_API int32_t dlab_drafter_context(dlab_drafter* d, int32_t layer, dlab_tensor* k, dlab_tensor* v, int64_t* positions, int64_t* n);
DLAB_API void dlab_drafter_destroy(dlab_drafter* d);
/*@cdef-end*/
#ifdef __cplusplus
}
#endif
#endif

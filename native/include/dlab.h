/* The C ABI between the lab and compiled candidates, version 1.0.
 *
 * One header for three readers: C11, C++17 and cffi. The text between the two cdef markers is the cffi cdef, so it holds only plain
 * declarations. A library implements the handshake and either some operations, or the fused drafter, or both, and says so in
 * dlab_info.flags; operations it does not implement are simply absent.
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
#define DLAB_ABI_MINOR 0

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

/* fused drafter */

/* config: key=value lines; every key is required unless noted and an unknown key is an error:
 *   family, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, block_size, mask_token_id, n_taps, target_hidden, eps,
 *   rope.theta, rope.dim, rope.style (neox | interleaved), attn_scale, causal and sliding (comma lists of 0/1, one per layer),
 *   window_rule (none | W_LT | W_LT_left | W_LE | W_LT_ctx | W_ANCHOR | W_RING | SINK_RING), window (not for none), sink (only
 *   SINK_RING), embed_scale, output_multiplier, softcap (0: none).
 * weights, by role: fc, hidden_norm, norm, embedding, head, layers.N.{input_norm,q,k,v,o,post_norm,gate,up,down,q_norm,k_norm} and
 *   optionally layers.N.{q_bias,k_bias,v_bias,o_bias}. Copied, unless flags has DLAB_BORROW.
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

/* A DFlash drafter in C99, as an engine without Python would have it: it runs an exported case (parity case export --weights) and dumps every stage.
 *
 *     cc -O2 -I<export> engine.c -lm -o engine && ./engine <export>        writes <export>/dump
 *
 * The generic drafter: q/k norms, neox rope, causal or bidirectional block, an optional window (W_LT). What it does not do it refuses.
 * Plain f32, sums from left to right.
 */
#include <math.h>
#include <stdlib.h>

#include "stage_dump.h"

typedef struct { int64_t shape[4]; int rank; void *data; } array;

typedef struct {
    int hidden, inner, layers, heads, kv, dim, vocab, rotary, window;
    float eps, scale;
    double theta;
    char sliding[256], causal[256];
} geometry;

typedef struct { float *k, *v; } cells; /* [cell][kv * dim] of one layer */

static char root[1024];
static stage_dump out;
static int step;

static void die(const char *what, const char *which) {
    fprintf(stderr, "engine: %s: %s\n", which, what);
    exit(2);
}

static char *text_file(const char *name) {
    char path[2048], *text;
    long size;
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", root, name);
    file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0) die("cannot be read", path);
    rewind(file);
    text = malloc((size_t)size + 1);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) die("cannot be read", path);
    text[size] = 0;
    fclose(file);
    return text;
}

/* An .npy file of version 1.0 in C order, as NumPy writes it. `count` elements of `descr`, or any number where it is 0. */
static array npy(const char *name, const char *descr, int64_t count) {
    array a = {{1, 1, 1, 1}, 0, NULL};
    char path[2048], header[65536], *at;
    unsigned char head[10];
    size_t length, item = descr[2] == '8' ? 8 : 4;
    int64_t total = 1;
    int i;
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", root, name);
    file = fopen(path, "rb");
    if (!file || fread(head, 1, 10, file) != 10 || memcmp(head, "\x93NUMPY\x01", 7)) die("not an .npy file of version 1", path);
    length = head[8] + 256u * head[9];
    if (fread(header, 1, length, file) != length) die("truncated", path);
    header[length] = 0;
    if (!strstr(header, descr) || !strstr(header, "'fortran_order': False") || !(at = strstr(header, "'shape': ("))) die("another layout", path);
    for (at += 10; *at && *at != ')' && a.rank < 4;) {
        a.shape[a.rank++] = strtoll(at, &at, 10);
        at += strspn(at, ", ");
    }
    for (i = 0; i < a.rank; i++) total *= a.shape[i];
    if (count && total != count) die("another shape than the geometry gives", path);
    a.data = malloc((size_t)total * item + 1);
    if (!a.data || fread(a.data, item, (size_t)total, file) != (size_t)total) die("truncated", path);
    fclose(file);
    return a;
}

static float *weight(int layer, const char *role, int64_t count) {
    char name[128];
    if (layer < 0)
        snprintf(name, sizeof name, "weights/%s.npy", role);
    else
        snprintf(name, sizeof name, "weights/L%d.%s.npy", layer, role);
    return npy(name, "<f4", count).data;
}

/* The value of a key of geometry.tsv. */
static const char *value(char *table, const char *key, char *kept, size_t size) {
    char *line = table;
    size_t n = strlen(key);
    for (; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, key, n) && line[n] == '\t') {
            size_t length = strcspn(line + n + 1, "\n");
            if (length >= size) die("too long", key);
            memcpy(kept, line + n + 1, length);
            kept[length] = 0;
            return kept;
        }
    die("is not in geometry.tsv", key);
    return NULL;
}

static geometry read_geometry(void) {
    static const char *wanted[][2] = {{"dialect.rope.style", "neox"}, {"dialect.attn_gate", "none"}, {"dialect.conv", "0"}, {"dialect.selector", "0"},
        {"dialect.markov", "none"}, {"dialect.tap_norm", "0"}, {"dialect.ctx_layernorm", "0"}, {"dialect.embed_scale", "1.0"},
        {"dialect.output_multiplier", "1.0"}, {"dialect.softcap", "none"}, {"dialect.rope.factors", "none"}, {"draft_vocab", "none"}};
    char *t = text_file("geometry.tsv"), v[256];
    size_t i;
    geometry g;
    memset(&g, 0, sizeof g);
#define NUMBER(field, key) g.field = atoi(value(t, key, v, sizeof v))
    NUMBER(hidden, "hidden"), NUMBER(inner, "intermediate"), NUMBER(layers, "layers"), NUMBER(heads, "heads"), NUMBER(kv, "kv_heads");
    NUMBER(dim, "head_dim"), NUMBER(vocab, "vocab"), NUMBER(rotary, "dialect.rope.dim"), NUMBER(window, "window");
    g.eps = (float)atof(value(t, "dialect.eps", v, sizeof v));
    g.scale = (float)atof(value(t, "dialect.attn_scale", v, sizeof v));
    g.theta = atof(value(t, "dialect.rope.theta", v, sizeof v));
    value(t, "sliding", g.sliding, sizeof g.sliding);
    value(t, "dialect.causal", g.causal, sizeof g.causal);
    for (i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (strcmp(value(t, wanted[i][0], v, sizeof v), wanted[i][1])) die("this engine does not do that", wanted[i][0]);
    if (strcmp(value(t, "dialect.window_rule", v, sizeof v), "none") && strcmp(v, "W_LT")) die("this engine knows W_LT only", "dialect.window_rule");
    free(t);
    return g;
}

static float *room(int64_t count) {
    float *p = calloc((size_t)count + 1, sizeof *p);
    if (!p) die("out of memory", "activations");
    return p;
}

static void put(int layer, const char *scope, const char *name, int64_t a, int64_t b, int64_t c, const void *data, const char *dtype) {
    static const char *three[] = {"row", "head", "dim"}, *two[] = {"row", "dim"};
    char stage[128];
    int64_t shape[3];
    shape[0] = a, shape[1] = b, shape[2] = c;
    if (layer < 0)
        snprintf(stage, sizeof stage, "draft.%s", name);
    else
        snprintf(stage, sizeof stage, "draft.L%d.%s%s", layer, scope, name);
    if (stage_dump_put(&out, step, stage, 0, dtype, c ? 3 : b ? 2 : 1, shape, NULL, c ? three : two, data)) die(out.error, stage);
}

static float *linear(const float *x, int rows, int in, const float *w, int64_t to) {
    float *y = room(rows * to);
    for (int r = 0; r < rows; r++)
        for (int64_t o = 0; o < to; o++) {
            float sum = 0;
            for (int i = 0; i < in; i++) sum += w[o * in + i] * x[(int64_t)r * in + i];
            y[r * to + o] = sum;
        }
    return y;
}

static float *norm(const float *x, int rows, int n, const float *w, float eps) {
    float *y = room((int64_t)rows * n);
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += x[(int64_t)r * n + i] * x[(int64_t)r * n + i];
        for (int i = 0; i < n; i++) y[(int64_t)r * n + i] = x[(int64_t)r * n + i] * (1 / sqrtf(sum / (float)n + eps)) * w[i];
    }
    return y;
}

static float *rope(const geometry *g, const float *x, int rows, int heads, int64_t at) {
    float *y = room((int64_t)rows * heads * g->dim);
    memcpy(y, x, (size_t)rows * (size_t)heads * (size_t)g->dim * sizeof *y);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < g->rotary / 2; i++) {
                float *a = y + ((int64_t)r * heads + h) * g->dim + i, *b = a + g->rotary / 2, first = *a, second = *b;
                double angle = (double)(at + r) * pow(g->theta, -2.0 * i / g->rotary);
                float c = (float)cos(angle), s = (float)sin(angle);
                *a = first * c - second * s;
                *b = second * c + first * s;
            }
    return y;
}

static float *attention(const geometry *g, int layer, const float *q, int rows, int64_t at, const cells *kv, int64_t count) {
    float *y = room((int64_t)rows * g->heads * g->dim), *p = room(count);
    int causal = g->causal[2 * layer] == '1', sliding = g->sliding[2 * layer] == '1', width = g->kv * g->dim;
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < g->heads; h++) {
            const float *mine = q + ((int64_t)r * g->heads + h) * g->dim;
            int64_t offset = (int64_t)(h / (g->heads / g->kv)) * g->dim, j;
            float top = -INFINITY, sum = 0;
            for (j = 0; j < count; j++) {
                int64_t apart = at + r - j;
                int seen = (!causal || apart >= 0) && (!sliding || llabs(apart) < g->window);
                float score = 0;
                for (int i = 0; i < g->dim; i++) score += mine[i] * kv->k[j * width + offset + i];
                p[j] = seen ? score * g->scale : -INFINITY;
                if (p[j] > top) top = p[j];
            }
            for (j = 0; j < count; j++) sum += p[j] = expf(p[j] - top);
            for (int i = 0; i < g->dim; i++) {
                float mixed = 0;
                for (j = 0; j < count; j++) mixed += p[j] * kv->v[j * width + offset + i];
                y[((int64_t)r * g->heads + h) * g->dim + i] = mixed / sum;
            }
        }
    free(p);
    return y;
}

/* Rows behind the committed cells; the caller decides whether they stay. */
static void extend(cells *c, int64_t committed, int rows, int width, const float *k, const float *v) {
    size_t all = (size_t)(committed + rows) * (size_t)width * sizeof(float), some = (size_t)rows * (size_t)width * sizeof(float);
    c->k = realloc(c->k, all);
    c->v = realloc(c->v, all);
    if (!c->k || !c->v) die("out of memory", "cells");
    memcpy(c->k + committed * width, k, some);
    memcpy(c->v + committed * width, v, some);
}

static void append(const geometry *g, cells *context, int64_t committed, const float *features, int rows, int taps) {
    int kv = g->kv * g->dim;
    float *fc = linear(features, rows, taps, weight(-1, "fc", (int64_t)g->hidden * taps), g->hidden);
    float *ctx = norm(fc, rows, g->hidden, weight(-1, "hidden_norm", g->hidden), g->eps);
    put(-1, "", "taps", rows, taps, 0, features, "f32"), put(-1, "", "fc", rows, g->hidden, 0, fc, "f32");
    put(-1, "", "ctx", rows, g->hidden, 0, ctx, "f32");
    for (int l = 0; l < g->layers; l++) {
        float *raw = linear(ctx, rows, g->hidden, weight(l, "k", (int64_t)kv * g->hidden), kv);
        float *normed = norm(raw, rows * g->kv, g->dim, weight(l, "k_norm", g->dim), g->eps), *k = rope(g, normed, rows, g->kv, committed);
        float *v = linear(ctx, rows, g->hidden, weight(l, "v", (int64_t)kv * g->hidden), kv);
        put(l, "ctx.", "k_raw", rows, g->kv, g->dim, raw, "f32"), put(l, "ctx.", "k_norm", rows, g->kv, g->dim, normed, "f32");
        put(l, "ctx.", "k_rope", rows, g->kv, g->dim, k, "f32"), put(l, "ctx.", "v", rows, g->kv, g->dim, v, "f32");
        extend(&context[l], committed, rows, kv, k, v);
    }
}

static float *layer(const geometry *g, int l, cells *context, int64_t committed, float *x, int rows, int64_t at) {
    int n = g->hidden, wide = g->heads * g->dim, kv = g->kv * g->dim;
    float *xn = norm(x, rows, n, weight(l, "input_norm", n), g->eps);
    float *q = linear(xn, rows, n, weight(l, "q", (int64_t)wide * n), wide), *k = linear(xn, rows, n, weight(l, "k", (int64_t)kv * n), kv);
    float *v = linear(xn, rows, n, weight(l, "v", (int64_t)kv * n), kv);
    float *qn = norm(q, rows * g->heads, g->dim, weight(l, "q_norm", g->dim), g->eps), *kn = norm(k, rows * g->kv, g->dim, weight(l, "k_norm", g->dim), g->eps);
    float *qr = rope(g, qn, rows, g->heads, at), *kr = rope(g, kn, rows, g->kv, at), *a, *o, *xm, *gate, *up, *down;
    put(l, "", "xn", rows, n, 0, xn, "f32"), put(l, "", "q_raw", rows, g->heads, g->dim, q, "f32"), put(l, "", "k_raw", rows, g->kv, g->dim, k, "f32");
    put(l, "", "v", rows, g->kv, g->dim, v, "f32"), put(l, "", "q_norm", rows, g->heads, g->dim, qn, "f32"), put(l, "", "k_norm", rows, g->kv, g->dim, kn, "f32");
    put(l, "", "q_rope", rows, g->heads, g->dim, qr, "f32"), put(l, "", "k_rope", rows, g->kv, g->dim, kr, "f32");
    extend(&context[l], committed, rows, kv, kr, v);
    put(l, "", "k_cells", committed + rows, g->kv, g->dim, context[l].k, "f32"), put(l, "", "v_cells", committed + rows, g->kv, g->dim, context[l].v, "f32");
    a = attention(g, l, qr, rows, at, &context[l], committed + rows);
    o = linear(a, rows, wide, weight(l, "o", (int64_t)n * wide), n);
    put(l, "", "attn", rows, g->heads, g->dim, a, "f32"), put(l, "", "o", rows, n, 0, o, "f32");
    for (int64_t i = 0; i < (int64_t)rows * n; i++) x[i] += o[i];
    put(l, "", "h_attn", rows, n, 0, x, "f32");
    xm = norm(x, rows, n, weight(l, "post_norm", n), g->eps);
    gate = linear(xm, rows, n, weight(l, "gate", (int64_t)g->inner * n), g->inner), up = linear(xm, rows, n, weight(l, "up", (int64_t)g->inner * n), g->inner);
    put(l, "", "xn_mlp", rows, n, 0, xm, "f32"), put(l, "", "mlp_gate", rows, g->inner, 0, gate, "f32"), put(l, "", "mlp_up", rows, g->inner, 0, up, "f32");
    for (int64_t i = 0; i < (int64_t)rows * g->inner; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    down = linear(gate, rows, g->inner, weight(l, "down", (int64_t)n * g->inner), n);
    put(l, "", "mlp_act", rows, g->inner, 0, gate, "f32"), put(l, "", "mlp_down", rows, n, 0, down, "f32");
    for (int64_t i = 0; i < (int64_t)rows * n; i++) x[i] += down[i];
    put(l, "", "h_mlp", rows, n, 0, x, "f32");
    return x;
}

static void propose(const geometry *g, cells *context, int64_t committed, const int64_t *ids, int rows, int64_t at) {
    const float *embedding = weight(-1, "embedding", (int64_t)g->vocab * g->hidden);
    float *x = room((int64_t)rows * g->hidden), *y, *logits;
    int64_t *pick = calloc((size_t)rows, sizeof *pick);
    for (int r = 0; r < rows; r++) memcpy(x + (int64_t)r * g->hidden, embedding + ids[r] * g->hidden, (size_t)g->hidden * sizeof *x);
    put(-1, "", "embed", rows, g->hidden, 0, x, "f32");
    for (int l = 0; l < g->layers; l++) x = layer(g, l, context, committed, x, rows, at);
    y = norm(x, rows, g->hidden, weight(-1, "norm", g->hidden), g->eps);
    logits = linear(y, rows, g->hidden, weight(-1, "target_head", (int64_t)g->vocab * g->hidden), g->vocab);
    for (int r = 0; r < rows; r++)
        for (int i = 1; i < g->vocab; i++)
            if (logits[(int64_t)r * g->vocab + i] > logits[(int64_t)r * g->vocab + pick[r]]) pick[r] = i;
    put(-1, "", "final_norm", rows, g->hidden, 0, y, "f32"), put(-1, "", "logits", rows, g->vocab, 0, logits, "f32");
    put(-1, "", "pick", rows, 0, 0, pick, "i64");
}

int main(int argc, char **argv) {
    char path[2048], kind[16], file[256], *line, *steps;
    int64_t committed = 0;
    long at;
    int rows;
    geometry g;
    cells *context;
    if (argc != 2 || strlen(argv[1]) >= sizeof root) return fprintf(stderr, "usage: engine EXPORTED-CASE\n"), 2;
    strcpy(root, argv[1]);
    g = read_geometry();
    context = calloc((size_t)g.layers, sizeof *context);
    snprintf(path, sizeof path, "%s/dump", root);
    if (!context || stage_dump_open(&out, path, text_file("dump-case.json"), "{\"candidate\": \"example engine in C\"}")) die(out.error, path);
    for (line = strchr(steps = text_file("steps.tsv"), '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        if (sscanf(line + 1, "%d\t%15s\t%ld\t%d\t%255s", &step, kind, &at, &rows, file) != 5) die("cannot be read", "steps.tsv");
        if (!strcmp(kind, "append")) {
            array features = npy(file, "<f4", 0);
            if (at != committed) die("this engine does not roll back", file);
            append(&g, context, committed, features.data, rows, (int)features.shape[1]);
            committed += rows;
        } else if (!strcmp(kind, "propose")) {
            propose(&g, context, committed, npy(file, "<i8", rows).data, rows, at);
        } else {
            die("not a step of a drafter", kind);
        }
    }
    free(steps);
    return stage_dump_close(&out) ? 2 : 0;
}

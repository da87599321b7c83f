//! A DFlash drafter in Rust: runs an exported case (`parity case export --weights`) and dumps every stage through the C header.
//!
//!     cc -c -I<export> stage_dump_abi.c && rustc -O engine.rs -C link-arg=stage_dump_abi.o && ./engine <export>
//!
//! The generic drafter in plain f32, sums in eight interleaved parts. What it does not do it refuses.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::{env, fs, process, ptr};

extern "C" {
    fn stage_dump_new() -> *mut c_void;
    fn stage_dump_error(d: *const c_void) -> *const c_char;
    fn stage_dump_open(d: *mut c_void, directory: *const c_char, case: *const c_char, provenance: *const c_char) -> c_int;
    fn stage_dump_announce(d: *mut c_void, stage: *const c_char) -> c_int;
    fn stage_dump_put(
        d: *mut c_void, step: i32, stage: *const c_char, row0: i64, dtype: *const c_char, ndim: c_int, shape: *const i64,
        strides: *const i64, axes: *const *const c_char, data: *const c_void,
    ) -> c_int;
    fn stage_dump_close(d: *mut c_void) -> c_int;
    fn stage_dump_free(d: *mut c_void);
}

fn die(what: &str) -> ! {
    eprintln!("engine: {what}");
    process::exit(2)
}

struct Dump {
    handle: *mut c_void,
    step: i32,
}

impl Dump {
    fn open(root: &str) -> Dump {
        let case = fs::read_to_string(format!("{root}/dump-case.json")).unwrap_or_else(|e| die(&e.to_string()));
        let text = |s: &str| CString::new(s).unwrap();
        let (folder, case, who) = (text(&format!("{root}/dump")), text(&case), text("{\"candidate\": \"example engine in Rust\"}"));
        let dump = Dump { handle: unsafe { stage_dump_new() }, step: 0 };
        dump.check(unsafe { stage_dump_open(dump.handle, folder.as_ptr(), case.as_ptr(), who.as_ptr()) });
        dump
    }

    fn check(&self, status: c_int) {
        if status != 0 {
            die(&unsafe { CStr::from_ptr(stage_dump_error(self.handle)) }.to_string_lossy());
        }
    }

    fn raw(&self, stage: &str, dtype: &str, shape: &[usize], data: *const c_void) {
        let (stage, dtype) = (CString::new(format!("draft.{stage}")).unwrap(), CString::new(dtype).unwrap());
        let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        self.check(unsafe { stage_dump_announce(self.handle, stage.as_ptr()) });
        self.check(unsafe {
            stage_dump_put(
                self.handle, self.step, stage.as_ptr(), 0, dtype.as_ptr(), shape.len() as c_int, shape.as_ptr(), ptr::null(), ptr::null(), data,
            )
        });
    }

    fn put(&self, stage: &str, shape: &[usize], values: &[f32]) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{stage}");
        self.raw(stage, "f32", shape, values.as_ptr().cast());
    }

    fn close(self) {
        self.check(unsafe { stage_dump_close(self.handle) });
        unsafe { stage_dump_free(self.handle) };
    }
}

/// The elements of an .npy file of version 1 in C order: (shape, bytes).
fn npy(path: &str, descr: &str) -> (Vec<usize>, Vec<u8>) {
    let bytes = fs::read(path).unwrap_or_else(|e| die(&format!("{path}: {e}")));
    if bytes.len() < 10 || &bytes[..8] != b"\x93NUMPY\x01\x00" {
        die(&format!("{path}: not an .npy file of version 1"));
    }
    let start = 10 + u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = String::from_utf8_lossy(&bytes[10..start]);
    if !header.contains(descr) || !header.contains("'fortran_order': False") {
        die(&format!("{path}: another layout"));
    }
    let inside = header.split("'shape': (").nth(1).and_then(|s| s.split(')').next()).unwrap_or_else(|| die(path));
    let shape = inside.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    (shape, bytes[start..].to_vec())
}

fn floats(path: &str) -> (Vec<usize>, Vec<f32>) {
    let (shape, bytes) = npy(path, "'<f4'");
    (shape, bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
}

struct Model {
    root: String,
    geometry: HashMap<String, String>,
}

impl Model {
    fn open(root: &str) -> Model {
        let text = fs::read_to_string(format!("{root}/geometry.tsv")).unwrap_or_else(|e| die(&e.to_string()));
        let geometry = text.lines().filter_map(|l| l.split_once('\t')).map(|(k, v)| (k.into(), v.into())).collect();
        let model = Model { root: root.into(), geometry };
        for (key, only) in [
            ("dialect.rope.style", "neox"), ("dialect.rope.factors", "none"), ("dialect.attn_gate", "none"), ("dialect.conv", "0"),
            ("dialect.selector", "0"), ("dialect.markov", "none"), ("dialect.tap_norm", "0"), ("dialect.ctx_layernorm", "0"),
            ("dialect.embed_scale", "1.0"), ("dialect.output_multiplier", "1.0"), ("dialect.softcap", "none"), ("draft_vocab", "none"),
        ] {
            if model.text(key) != only {
                die(&format!("{key}={}: this engine does {only} only", model.text(key)));
            }
        }
        if !["none", "W_LT"].contains(&model.text("dialect.window_rule")) {
            die("dialect.window_rule: this engine knows W_LT only");
        }
        model
    }

    fn text(&self, key: &str) -> &str {
        self.geometry.get(key).map_or_else(|| die(&format!("{key} is not in geometry.tsv")), |v| v.as_str())
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> T {
        self.text(key).parse().unwrap_or_else(|_| die(&format!("{key}: not a number")))
    }

    fn flag(&self, key: &str, layer: usize) -> bool {
        self.text(key).split(',').nth(layer) == Some("1")
    }

    fn weight(&self, name: &str) -> Vec<f32> {
        floats(&format!("{}/weights/{name}.npy", self.root)).1
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut parts = [0f32; 8];
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        parts[i % 8] += x * y;
    }
    parts.iter().sum()
}

/// x [row, in], w [out, in] -> [row, out].
fn linear(x: &[f32], w: &[f32], wide: usize) -> Vec<f32> {
    x.chunks_exact(wide).flat_map(|row| w.chunks_exact(wide).map(move |out| dot(row, out))).collect()
}

fn norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    x.chunks_exact(w.len())
        .flat_map(|row| {
            let scale = 1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt();
            row.iter().zip(w).map(move |(v, g)| v * scale * g)
        })
        .collect()
}

fn rope(m: &Model, x: &[f32], heads: usize, at: usize) -> Vec<f32> {
    let (dim, width, theta): (usize, usize, f64) = (m.number("head_dim"), m.number("dialect.rope.dim"), m.number("dialect.rope.theta"));
    let mut y = x.to_vec();
    for (n, head) in y.chunks_exact_mut(dim).enumerate() {
        for i in 0..width / 2 {
            let angle = (at + n / heads) as f64 * theta.powf(-2.0 * i as f64 / width as f64);
            let (c, s, a, b) = (angle.cos() as f32, angle.sin() as f32, head[i], head[i + width / 2]);
            head[i] = a * c - b * s;
            head[i + width / 2] = b * c + a * s;
        }
    }
    y
}

fn attention(m: &Model, layer: usize, q: &[f32], k: &[f32], v: &[f32], at: usize) -> Vec<f32> {
    let (dim, heads, kv): (usize, usize, usize) = (m.number("head_dim"), m.number("heads"), m.number("kv_heads"));
    let (scale, cells) = (m.number::<f32>("dialect.attn_scale"), k.len() / (kv * dim));
    let (causal, sliding) = (m.flag("dialect.causal", layer), m.flag("sliding", layer));
    let window: i64 = if sliding { m.number("window") } else { i64::MAX };
    let mut y = vec![0f32; q.len()];
    for (n, out) in y.chunks_exact_mut(dim).enumerate() {
        let (row, group) = (n / heads, n % heads / (heads / kv));
        let cell = |x: &'_ [f32], j: usize| -> Vec<f32> { x[(j * kv + group) * dim..][..dim].to_vec() };
        let seen = |j: usize| {
            let apart = (at + row) as i64 - j as i64;
            (!causal || apart >= 0) && apart.abs() < window
        };
        let scores: Vec<f32> = (0..cells).map(|j| if seen(j) { dot(&q[n * dim..][..dim], &cell(k, j)) * scale } else { f32::NEG_INFINITY }).collect();
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f32 = weights.iter().sum();
        for (j, p) in weights.iter().enumerate() {
            out.iter_mut().zip(cell(v, j)).for_each(|(o, x)| *o += p * x);
        }
        out.iter_mut().for_each(|o| *o /= total);
    }
    y
}

fn append(m: &Model, dump: &Dump, context: &mut [(Vec<f32>, Vec<f32>)], committed: usize, features: &[f32], rows: usize) {
    let (hidden, kv, dim, eps): (usize, usize, usize, f32) = (m.number("hidden"), m.number("kv_heads"), m.number("head_dim"), m.number("dialect.eps"));
    let fc = linear(features, &m.weight("fc"), features.len() / rows);
    let ctx = norm(&fc, &m.weight("hidden_norm"), eps);
    dump.put("taps", &[rows, features.len() / rows], features);
    dump.put("fc", &[rows, hidden], &fc);
    dump.put("ctx", &[rows, hidden], &ctx);
    for (l, cells) in context.iter_mut().enumerate() {
        let raw = linear(&ctx, &m.weight(&format!("L{l}.k")), hidden);
        let normed = norm(&raw, &m.weight(&format!("L{l}.k_norm")), eps);
        let k = rope(m, &normed, kv, committed);
        let v = linear(&ctx, &m.weight(&format!("L{l}.v")), hidden);
        for (name, values) in [("k_raw", &raw), ("k_norm", &normed), ("k_rope", &k), ("v", &v)] {
            dump.put(&format!("L{l}.ctx.{name}"), &[rows, kv, dim], values);
        }
        cells.0.extend(k);
        cells.1.extend(v);
    }
}

fn layer(m: &Model, dump: &Dump, l: usize, cells: &(Vec<f32>, Vec<f32>), x: Vec<f32>, rows: usize, at: usize) -> Vec<f32> {
    let (hidden, inner, dim): (usize, usize, usize) = (m.number("hidden"), m.number("intermediate"), m.number("head_dim"));
    let (heads, kv, eps): (usize, usize, f32) = (m.number("heads"), m.number("kv_heads"), m.number("dialect.eps"));
    let w = |role: &str| m.weight(&format!("L{l}.{role}"));
    let put = |name: &str, shape: &[usize], values: &[f32]| dump.put(&format!("L{l}.{name}"), shape, values);
    let sum = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(p, q)| p + q).collect() };
    let xn = norm(&x, &w("input_norm"), eps);
    put("xn", &[rows, hidden], &xn);
    let rotated = |name: &str, n: usize| {
        let raw = linear(&xn, &w(name), hidden);
        let normed = norm(&raw, &w(&format!("{name}_norm")), eps);
        let turned = rope(m, &normed, n, at);
        put(&format!("{name}_raw"), &[rows, n, dim], &raw);
        put(&format!("{name}_norm"), &[rows, n, dim], &normed);
        put(&format!("{name}_rope"), &[rows, n, dim], &turned);
        turned
    };
    let (q, k, v) = (rotated("q", heads), rotated("k", kv), linear(&xn, &w("v"), hidden));
    put("v", &[rows, kv, dim], &v);
    let (keys, values) = ([&cells.0[..], &k].concat(), [&cells.1[..], &v].concat());
    put("k_cells", &[keys.len() / (kv * dim), kv, dim], &keys);
    put("v_cells", &[values.len() / (kv * dim), kv, dim], &values);
    let a = attention(m, l, &q, &keys, &values, at);
    put("attn", &[rows, heads, dim], &a);
    let o = linear(&a, &w("o"), heads * dim);
    put("o", &[rows, hidden], &o);
    let x = sum(&x, &o);
    put("h_attn", &[rows, hidden], &x);
    let xm = norm(&x, &w("post_norm"), eps);
    let (gate, up) = (linear(&xm, &w("gate"), hidden), linear(&xm, &w("up"), hidden));
    let act: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    let down = linear(&act, &w("down"), inner);
    put("xn_mlp", &[rows, hidden], &xm);
    put("mlp_gate", &[rows, inner], &gate);
    put("mlp_up", &[rows, inner], &up);
    put("mlp_act", &[rows, inner], &act);
    put("mlp_down", &[rows, hidden], &down);
    let x = sum(&x, &down);
    put("h_mlp", &[rows, hidden], &x);
    x
}

fn propose(m: &Model, dump: &Dump, context: &[(Vec<f32>, Vec<f32>)], ids: &[i64], at: usize) {
    let (hidden, rows, embedding) = (m.number::<usize>("hidden"), ids.len(), m.weight("embedding"));
    let mut x: Vec<f32> = ids.iter().flat_map(|&i| embedding[i as usize * hidden..][..hidden].to_vec()).collect();
    dump.put("embed", &[rows, hidden], &x);
    for (l, cells) in context.iter().enumerate() {
        x = layer(m, dump, l, cells, x, rows, at);
    }
    let y = norm(&x, &m.weight("norm"), m.number("dialect.eps"));
    let logits = linear(&y, &m.weight("target_head"), hidden);
    let vocab = logits.len() / rows;
    let best = |row: &[f32]| (0..vocab).fold(0, |b, i| if row[i] > row[b] { i } else { b }) as i64;
    let pick: Vec<i64> = logits.chunks_exact(vocab).map(best).collect();
    dump.put("final_norm", &[rows, hidden], &y);
    dump.put("logits", &[rows, vocab], &logits);
    dump.raw("pick", "i64", &[rows], pick.as_ptr().cast());
}

fn main() {
    let root = env::args().nth(1).unwrap_or_else(|| die("usage: engine EXPORTED-CASE"));
    let (model, mut dump) = (Model::open(&root), Dump::open(&root));
    let mut context = vec![(Vec::new(), Vec::new()); model.number("layers")];
    let mut committed = 0;
    let steps = fs::read_to_string(format!("{root}/steps.tsv")).unwrap_or_else(|e| die(&e.to_string()));
    for line in steps.lines().skip(1) {
        let words: Vec<&str> = line.split('\t').collect();
        let [step, kind, at, rows, file] = words[..] else { die("steps.tsv: expected five columns") };
        let (at, rows): (usize, usize) = (at.parse().unwrap(), rows.parse().unwrap());
        dump.step = step.parse().unwrap();
        match kind {
            "append" if at == committed => {
                append(&model, &dump, &mut context, at, &floats(&format!("{root}/{file}")).1, rows);
                committed += rows;
            }
            "propose" => {
                let ids: Vec<i64> = npy(&format!("{root}/{file}"), "'<i8'").1.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
                propose(&model, &dump, &context, &ids, at);
            }
            _ => die(&format!("{kind} at {at}: this engine does not do that")),
        }
    }
    dump.close();
}

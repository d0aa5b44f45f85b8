//! How the peer calls the ways in which an engine's cache lies in memory, for `/status` and errors:
//! its command line shows these words (spec/http-cli §2.2).

use kvtide_core::engine::status::InstanceStatus;
use kvtide_core::pages::{Format, Pages};
use serde_json::{Value, json};

pub fn name(format: Format) -> &'static str {
    words(format)[0]
}

/// Name, shape, and the backend of the engine that has it.
fn words(format: Format) -> [&'static str; 3] {
    match format {
        Format::CrossLayer => ["NB_NL_TWO_BS_NH_HS", "[NB, NL, 2, BS, NH, HS]", "vLLM CROSS_LAYER"],
        Format::PlaneBlockSlot => {
            ["NL_X_TWO_NB_BS_NH_HS", "NL x [2, NB, BS, NH, HS]", "vLLM non-MLA flash attention"]
        }
        Format::BlockPlaneSlot => {
            ["NL_X_NB_TWO_BS_NH_HS", "NL x [NB, 2, BS, NH, HS]", "vLLM non-MLA flash infer"]
        }
        Format::Latent => ["NL_X_NB_BS_HS", "NL x [NB, BS, HS]", "vLLM MLA / SGLang MLA (MP)"],
        Format::PlaneBlockHead => [
            "NL_X_TWO_NB_NH_BS_HS",
            "NL x [2, NB, NH, BS, HS]",
            "vLLM non-MLA flash attention (HND layout)",
        ],
        Format::BlockPlaneHead => [
            "NL_X_NB_TWO_NH_BS_HS",
            "NL x [NB, 2, NH, BS, HS]",
            "vLLM non-MLA flash infer (HND layout)",
        ],
        Format::PackedHead => [
            "NL_X_NB_NH_BS_CS",
            "NL x [NB, NH, BS, CS]",
            "vLLM non-MLA blocks-first, fused K/V (HND)",
        ],
        Format::PackedSlot => [
            "NL_X_NB_BS_NH_CS",
            "NL x [NB, BS, NH, CS]",
            "vLLM non-MLA blocks-first, fused K/V (NHD)",
        ],
        Format::Indexer => ["NL_X_NB_BSV_BSS", "NL x [NB, BSxVALS, BSxSCALES]", "vLLM MLA"],
    }
}

/// With numbers. The peer knows none for some formats and says so.
fn concrete_shape(pages: &Pages) -> String {
    let Pages { layers, blocks, slots_per_block: slots, heads, width, .. } = *pages;
    match pages.format {
        Format::CrossLayer => format!("[{blocks}, {layers}, 2, {slots}, {heads}, {width}]"),
        Format::PlaneBlockSlot => format!("{layers} x [2, {blocks}, {slots}, {heads}, {width}]"),
        Format::BlockPlaneSlot => format!("{layers} x [{blocks}, 2, {slots}, {heads}, {width}]"),
        Format::Latent => format!("{layers} x [{blocks}, {slots}, {width}]"),
        Format::PlaneBlockHead => format!("{layers} x [2, {blocks}, {heads}, {slots}, {width}]"),
        Format::BlockPlaneHead => format!("{layers} x [{blocks}, 2, {heads}, {slots}, {width}]"),
        Format::PackedHead | Format::PackedSlot | Format::Indexer => {
            format!("Unknown (EngineKVFormat.{})", name(pages.format))
        }
    }
}

/// What `cache_context_meta` says of one instance.
pub fn context(instance: &InstanceStatus, pages: &Pages) -> Value {
    let [name, shape, backend] = words(pages.format);
    let block = u64::from(pages.planes) * u64::from(pages.layers) * pages.block_bytes();
    json!({
        "model_name": instance.model,
        "world_size": instance.world_size,
        "kv_cache_layout": {
            "num_layers": pages.layers,
            "num_blocks": pages.blocks,
            "cache_size_per_token": block / u64::from(pages.tokens_per_block),
            "kernel_groups": [{
                "kernel_group_idx": 0,
                "engine_group_idx": 0,
                "object_group_idx": 0,
                "num_layers": pages.layers,
                "layer_indices": (0..pages.layers).collect::<Vec<_>>(),
                "tokens_per_block": pages.tokens_per_block,
                "slots_per_block": pages.slots_per_block,
                "dtype": format!("torch.{}", pages.dtype.name()),
                "engine_kv_concrete_shape": concrete_shape(pages),
                "is_mla": matches!(pages.format, Format::Latent | Format::Indexer),
                "engine_kv_format": name,
                "engine_kv_shape": shape,
                "attention_backend": backend,
            }],
        },
    })
}

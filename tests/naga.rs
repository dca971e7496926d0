// Reads WGSL texts, separated by NUL bytes, from stdin, and writes what naga says of each, separated in the
// same way: nothing if it is valid, and its SPIR-V and Metal back ends translate it. With a folder as argument,
// the SPIR-V of the text at place i is written to i.spv there.
use naga::back::{msl, spv};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::io::{Read, Write};

fn check(text: &str, file: Option<String>) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|e| e.emit_to_string(text))?;
    // As kernels of the package run: without checks.
    let spirv = spv::Options {
        lang_version: (1, 4),
        force_loop_bounding: false,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        ..Default::default()
    };
    let words = spv::write_vec(&module, &info, &spirv, None).map_err(|e| format!("spv: {e}"))?;
    if let Some(name) = file {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        std::fs::write(name, bytes).map_err(|e| e.to_string())?;
    }
    let metal = msl::Options { lang_version: (2, 3), fake_missing_bindings: true, ..Default::default() };
    msl::write_string(&module, &info, &metal, &msl::PipelineOptions::default())
        .map(|_| ())
        .map_err(|e| format!("msl: {e}"))
}

fn main() {
    let mut texts = String::new();
    std::io::stdin().read_to_string(&mut texts).expect("WGSL in UTF-8");
    let folder = std::env::args().nth(1);
    let found: Vec<String> = texts
        .split('\0')
        .enumerate()
        .map(|(i, t)| check(t, folder.as_ref().map(|f| format!("{f}/{i}.spv"))).err().unwrap_or_default())
        .collect();
    std::io::stdout().write_all(found.join("\0").as_bytes()).expect("a reader");
}

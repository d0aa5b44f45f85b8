//! The names that a pickle of tensors may hold. Nothing is looked up by them: a name is a word of a
//! fixed list or it is nobody, and a function that is not listed here ends the reading.

use crate::names::Dtype;

/// A text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    Torch,
    TorchUtils,
    TorchStorage,
    Collections,
    RebuildV2,
    RebuildV3,
    LoadFromBytes,
    OrderedDict,
    UntypedStorage,
    /// `FloatStorage` and its like: the class of a storage, by the type of its elements.
    TypedStorage(Dtype),
    /// `float8_e4m3fn` and its like.
    Dtype(Dtype),
    /// The first word of a persistent id.
    Storage,
    LittleEndian,
    /// Keys, devices, and whatever else is said in passing.
    Other,
}

/// A function, a class or a constant that a pickle may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    RebuildV2,
    RebuildV3,
    LoadFromBytes,
    OrderedDict,
    UntypedStorage,
    TypedStorage(Dtype),
    Dtype(Dtype),
}

impl Symbol {
    pub fn of(text: &str) -> Symbol {
        match text {
            "torch" => Symbol::Torch,
            "torch._utils" => Symbol::TorchUtils,
            "torch.storage" => Symbol::TorchStorage,
            "collections" => Symbol::Collections,
            "_rebuild_tensor_v2" => Symbol::RebuildV2,
            "_rebuild_tensor_v3" => Symbol::RebuildV3,
            "_load_from_bytes" => Symbol::LoadFromBytes,
            "OrderedDict" => Symbol::OrderedDict,
            "UntypedStorage" => Symbol::UntypedStorage,
            "storage" => Symbol::Storage,
            "little_endian" => Symbol::LittleEndian,
            _ => {
                let class = STORAGE_CLASSES.iter().find(|(class, _)| *class == text);
                match class.and_then(|(_, element)| Dtype::named(element)) {
                    Some(element) => Symbol::TypedStorage(element),
                    None => Dtype::named(text).map_or(Symbol::Other, Symbol::Dtype),
                }
            }
        }
    }
}

impl Global {
    pub fn of(module: Symbol, name: Symbol) -> Option<Global> {
        Some(match (module, name) {
            (Symbol::TorchUtils, Symbol::RebuildV2) => Global::RebuildV2,
            (Symbol::TorchUtils, Symbol::RebuildV3) => Global::RebuildV3,
            (Symbol::TorchStorage, Symbol::LoadFromBytes) => Global::LoadFromBytes,
            (Symbol::Collections, Symbol::OrderedDict) => Global::OrderedDict,
            (Symbol::TorchStorage | Symbol::Torch, Symbol::UntypedStorage) => {
                Global::UntypedStorage
            }
            (Symbol::Torch, Symbol::TypedStorage(element)) => Global::TypedStorage(element),
            (Symbol::Torch, Symbol::Dtype(dtype)) => Global::Dtype(dtype),
            _ => return None,
        })
    }
}

/// Torch's storage classes and the names of their elements' types.
const STORAGE_CLASSES: &[(&str, &str)] = &[
    ("HalfStorage", "float16"),
    ("BFloat16Storage", "bfloat16"),
    ("FloatStorage", "float32"),
    ("DoubleStorage", "float64"),
    ("ByteStorage", "uint8"),
    ("CharStorage", "int8"),
    ("ShortStorage", "int16"),
    ("IntStorage", "int32"),
    ("LongStorage", "int64"),
    ("BoolStorage", "bool"),
    ("ComplexFloatStorage", "complex64"),
    ("ComplexDoubleStorage", "complex128"),
];

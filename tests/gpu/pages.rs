//! How the pages of a cache lie, as the engine sees it, worked out apart from the server: every row
//! (the values of one head of one slot) has a place in its tensor.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[2, NB, …]`: 1, or 6 with heads first.
    PlaneBlock,
    /// `[NB, 2, …]`: 2 or 7.
    BlockPlane,
    /// `[NB, …, 2·HS]`: 13 or 12, with so many bytes between blocks.
    Packed { padding: u64 },
    /// `[NB, BS, C]`: 3.
    Latent,
    /// `[NB, BS, 132]` of bytes.
    Indexer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    pub form: Form,
    pub heads_first: bool,
    pub layers: u64,
    pub blocks: u64,
}

pub const SLOTS: u64 = 4;
const HEADS: u64 = 3;
/// Values of two bytes.
const WIDTH: u64 = 8;

impl Pages {
    pub fn new(form: Form) -> Pages {
        Pages { form, heads_first: false, layers: 3, blocks: 14 }
    }

    pub fn heads_first(self) -> Pages {
        Pages { heads_first: true, ..self }
    }

    fn planes(&self) -> u64 {
        if matches!(self.form, Form::PlaneBlock | Form::BlockPlane) { 2 } else { 1 }
    }

    fn heads(&self) -> u64 {
        if matches!(self.form, Form::Latent | Form::Indexer) { 1 } else { HEADS }
    }

    fn width(&self) -> u64 {
        match self.form {
            Form::Packed { .. } => 2 * WIDTH,
            Form::Indexer => 132,
            _ => WIDTH,
        }
    }

    pub fn dtype(&self) -> &'static str {
        if self.form == Form::Indexer { "uint8" } else { "float16" }
    }

    pub fn row_bytes(&self) -> u64 {
        self.width() * if self.form == Form::Indexer { 1 } else { 2 }
    }

    /// One plane of one block.
    fn block_bytes(&self) -> u64 {
        SLOTS * self.heads() * self.row_bytes()
    }

    fn block_stride(&self) -> u64 {
        match self.form {
            Form::BlockPlane => 2 * self.block_bytes(),
            Form::Packed { padding } => self.block_bytes() + padding,
            _ => self.block_bytes(),
        }
    }

    /// From the first value of a tensor to the end of its last.
    pub fn tensor_bytes(&self) -> u64 {
        match self.form {
            Form::PlaneBlock => 2 * self.blocks * self.block_bytes(),
            Form::BlockPlane => self.blocks * self.block_stride(),
            _ => (self.blocks - 1) * self.block_stride() + self.block_bytes(),
        }
    }

    /// Where the rows of a block lie, in an order that all forms have in common: by plane, slot and
    /// head.
    pub fn rows(&self, block: u64) -> Vec<u64> {
        let (heads, row) = (self.heads(), self.row_bytes());
        let mut rows = Vec::new();
        for plane in 0..self.planes() {
            let start = match self.form {
                Form::PlaneBlock => (plane * self.blocks + block) * self.block_bytes(),
                _ => block * self.block_stride() + plane * self.block_bytes(),
            };
            for slot in 0..SLOTS {
                for head in 0..heads {
                    let at = match self.heads_first {
                        true => head * SLOTS + slot,
                        false => slot * heads + head,
                    };
                    rows.push(start + at * row);
                }
            }
        }
        rows
    }

    pub fn shape(&self) -> Vec<u64> {
        let (heads, width) = (self.heads(), self.width());
        let inner = match self.heads_first {
            true => [heads, SLOTS, width],
            false => [SLOTS, heads, width],
        };
        match self.form {
            Form::PlaneBlock => [&[2, self.blocks], &inner[..]].concat(),
            Form::BlockPlane => [&[self.blocks, 2], &inner[..]].concat(),
            Form::Packed { .. } => [&[self.blocks], &inner[..]].concat(),
            Form::Latent | Form::Indexer => vec![self.blocks, SLOTS, width],
        }
    }

    /// In values, as PyTorch counts.
    pub fn strides(&self) -> Vec<u64> {
        let shape = self.shape();
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        if let Form::Packed { padding } = self.form {
            strides[0] += padding / 2;
        }
        strides
    }

    pub fn hint(&self) -> &'static str {
        if self.heads_first { "HND" } else { "NHD" }
    }
}

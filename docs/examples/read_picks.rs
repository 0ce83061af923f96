// NCCL's pick for a size, from a file of `nccl-tuner export --format compiled`: read_picks FILE COLLECTIVE BYTES...
use std::{convert::TryInto, env, fs};

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let data = fs::read(&arguments[1]).expect("a file");
    let u64_at = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let f32_at = |at: usize| f32::from_le_bytes(data[at..at + 4].try_into().unwrap());
    let u16_at = |at: usize| u16::from_le_bytes(data[at..at + 2].try_into().unwrap());
    let mut at = 24 + (u64_at(16) as usize + 7) / 8 * 8;
    let tables = u64_at(at);
    at += 8;
    for _ in 0..tables {
        let name = String::from_utf8_lossy(&data[at..at + 24]).trim_end_matches('\0').to_string();
        let rows = u64_at(at + 24) as usize;
        let from = at + 32;
        let first_row = from + 8 * (rows + 1);
        if name == arguments[2] {
            for bytes in arguments[3..].iter().map(|text| text.parse::<u64>().expect("a size")) {
                let starts: Vec<u64> = (0..rows).map(|row| u64_at(from + 8 * row)).collect();
                let row = first_row + 16 * (starts.partition_point(|&start| start <= bytes) - 1);
                let us = bytes as f32 / f32_at(row) + f32_at(row + 4);
                let (algorithm, protocol) = (data[row + 12] as i8, data[row + 13] as i8);
                println!("{} {} {} {} {} {:?}", bytes, algorithm, protocol, u16_at(row + 8), u16_at(row + 10), us);
            }
        }
        at = first_row + 16 * rows;
    }
}

// Runs a package on Core ML and compares it with saved outputs of the ONNX model that it was made from.
// Written by deploykit; check.json beside this file says what the files hold. macOS 13, iOS 16 or newer.

import CoreML
import CoreVideo
import Foundation

/// check.json.
struct Check: Decodable {
    struct Tensor: Decodable {
        let file: String
        let dtype: String
        let shape: [Int]
    }
    struct Sample: Decodable {
        let name: String
        let inputs: [String: Tensor]
        let outputs: [String: Tensor]
    }
    struct Input: Decodable {
        let kind: String
    }
    struct Output: Decodable {
        let kind: String
        let exact: Bool
        let label: String?
        let values: String?
        let labels: [Label]?
    }
    struct Limits: Decodable {
        let row: String
        let text: String
        let rtol: Double?
        let atol_factor: Double?
        let min_sqnr_db: Double?
    }
    let format: String
    let package: String
    let limits: Limits
    let inputs: [String: Input]
    let outputs: [String: Output]
    let samples: [Sample]
}

/// A class label: text or integer.
enum Label: Decodable {
    case text(String)
    case number(Int64)

    init(from decoder: Decoder) throws {
        let container = try decoder.singleValueContainer()
        if let number = try? container.decode(Int64.self) {
            self = .number(number)
        } else {
            self = .text(try container.decode(String.self))
        }
    }

    var key: AnyHashable {
        switch self {
        case .text(let text): return AnyHashable(text)
        case .number(let number): return AnyHashable(number)
        }
    }
}

struct CheckError: Error, CustomStringConvertible {
    let description: String
}

/// One output on one compute unit.
struct CheckRow: CustomStringConvertible {
    let unit: String
    let output: String
    let passed: Bool
    let largest: Double
    let decibels: Double
    let fault: String

    var description: String {
        let numbers = String(format: "max abs %.3g, SQNR %.1f dB", largest, decibels)
        return "\(unit) \(output): \(passed ? "passed" : "FAILED \(fault)") (\(numbers))"
    }
}

/// The check in a folder.
struct CoreMLCheck {
    static let units: [(String, MLComputeUnits)] = [
        ("cpu", .cpuOnly), ("gpu", .cpuAndGPU), ("npu", .cpuAndNeuralEngine), ("all", .all),
    ]

    let folder: URL
    let check: Check
    let package: URL

    /// package: an .mlpackage or a compiled .mlmodelc; nil for the package beside the folder.
    init(folder: URL, package: URL? = nil) throws {
        self.folder = folder
        let text = try Data(contentsOf: folder.appendingPathComponent("check.json"))
        check = try JSONDecoder().decode(Check.self, from: text)
        guard check.format == "deploykit.check/1" else {
            throw CheckError(description: "check.json is \(check.format)")
        }
        self.package = package ?? folder.deletingLastPathComponent().appendingPathComponent(check.package)
    }

    /// Every output on every compute unit; a unit that fails to load is a row that has not passed.
    func run() throws -> [CheckRow] {
        let compiled = package.pathExtension == "mlmodelc" ? package : try MLModel.compileModel(at: package)
        var rows: [CheckRow] = []
        for (name, unit) in Self.units {
            do {
                rows += try rowsOf(unit: name, compiled: compiled, computeUnits: unit)
            } catch {
                rows.append(
                    CheckRow(unit: name, output: "-", passed: false, largest: .nan, decibels: .nan, fault: "\(error)"))
            }
        }
        return rows
    }

    private func rowsOf(unit: String, compiled: URL, computeUnits: MLComputeUnits) throws -> [CheckRow] {
        let configuration = MLModelConfiguration()
        configuration.computeUnits = computeUnits
        let model = try MLModel(contentsOf: compiled, configuration: configuration)
        var expected: [String: [Double]] = [:]
        var made: [String: [Double]] = [:]
        for sample in check.samples {
            var given: [String: MLFeatureValue] = [:]
            for (name, tensor) in sample.inputs {
                given[name] =
                    check.inputs[name]?.kind == "image"
                    ? MLFeatureValue(pixelBuffer: try pixelBuffer(tensor))
                    : MLFeatureValue(multiArray: try multiArray(tensor))
            }
            let result = try model.prediction(from: try MLDictionaryFeatureProvider(dictionary: given))
            for (name, output) in check.outputs {
                guard let tensor = sample.outputs[name] else { continue }
                let wanted = try numbers(tensor)
                let found = try values(of: output, name: name, in: result)
                guard found.count == wanted.count else {
                    throw CheckError(description: "\(name) has \(found.count) values, \(wanted.count) are expected")
                }
                expected[name, default: []] += wanted
                made[name, default: []] += found
            }
        }
        return check.outputs.keys.sorted().map { name in
            compared(unit: unit, name: name, expected: expected[name] ?? [], made: made[name] ?? [])
        }
    }

    private func compared(unit: String, name: String, expected: [Double], made: [Double]) -> CheckRow {
        func row(_ passed: Bool, _ largest: Double, _ decibels: Double, _ fault: String) -> CheckRow {
            CheckRow(unit: unit, output: name, passed: passed, largest: largest, decibels: decibels, fault: fault)
        }
        guard !expected.isEmpty else { return row(false, .nan, .nan, "nothing was compared") }
        guard expected.allSatisfy(\.isFinite), made.allSatisfy(\.isFinite) else {
            return row(false, .nan, .nan, "NaN or infinite values")
        }
        var largest = 0.0
        var noise = 0.0
        var signal = 0.0
        var top = 0.0
        for (wanted, found) in zip(expected, made) {
            largest = max(largest, abs(found - wanted))
            noise += (found - wanted) * (found - wanted)
            signal += wanted * wanted
            top = max(top, abs(wanted))
        }
        let decibels = noise == 0 ? Double.infinity : signal == 0 ? -Double.infinity : 10 * log10(signal / noise)
        if check.outputs[name]?.exact == true {
            return row(largest == 0, largest, decibels, "integers differ")
        }
        var passed = true
        if let rtol = check.limits.rtol {
            let floor = (check.limits.atol_factor ?? 0) * top
            passed = zip(expected, made).allSatisfy { abs($1 - $0) <= rtol * abs($0) + floor }
        }
        if let least = check.limits.min_sqnr_db {
            passed = passed && decibels >= least
        }
        return row(passed, largest, decibels, "beyond the limits: \(check.limits.text)")
    }

    // MARK: - Files

    private func bytes(_ tensor: Check.Tensor) throws -> Data {
        try Data(contentsOf: folder.appendingPathComponent(tensor.file))
    }

    private func multiArray(_ tensor: Check.Tensor) throws -> MLMultiArray {
        let types: [String: (MLMultiArrayDataType, Int)] = [
            "float32": (.float32, 4), "float16": (.float16, 2), "int32": (.int32, 4),
        ]
        guard let (type, width) = types[tensor.dtype] else {
            throw CheckError(description: "\(tensor.file) is \(tensor.dtype)")
        }
        let array = try MLMultiArray(shape: tensor.shape.map { NSNumber(value: $0) }, dataType: type)
        let data = try bytes(tensor)
        guard data.count == array.count * width else {
            throw CheckError(description: "\(tensor.file) has \(data.count) bytes")
        }
        // A new array is contiguous, the last axis first.
        data.withUnsafeBytes { source in
            if let start = source.baseAddress {
                array.dataPointer.copyMemory(from: start, byteCount: data.count)
            }
        }
        return array
    }

    /// A picture of 8 bits: [height, width, 3] red, green, blue, or [height, width] gray.
    private func pixelBuffer(_ tensor: Check.Tensor) throws -> CVPixelBuffer {
        let data = [UInt8](try bytes(tensor))
        let height = tensor.shape[0]
        let width = tensor.shape[1]
        let gray = tensor.shape.count == 2
        let format = gray ? kCVPixelFormatType_OneComponent8 : kCVPixelFormatType_32BGRA
        let attributes = [kCVPixelBufferIOSurfacePropertiesKey as String: [String: String]()] as CFDictionary
        var made: CVPixelBuffer?
        let status = CVPixelBufferCreate(kCFAllocatorDefault, width, height, format, attributes, &made)
        guard status == kCVReturnSuccess, let buffer = made, data.count == width * height * (gray ? 1 : 3) else {
            throw CheckError(description: "no pixel buffer for \(tensor.file) (\(status))")
        }
        CVPixelBufferLockBaseAddress(buffer, [])
        defer { CVPixelBufferUnlockBaseAddress(buffer, []) }
        guard let start = CVPixelBufferGetBaseAddress(buffer) else {
            throw CheckError(description: "no memory for \(tensor.file)")
        }
        let stride = CVPixelBufferGetBytesPerRow(buffer)
        let pixels = start.assumingMemoryBound(to: UInt8.self)
        for y in 0..<height {
            for x in 0..<width {
                if gray {
                    pixels[y * stride + x] = data[y * width + x]
                } else {
                    let from = (y * width + x) * 3
                    let to = y * stride + x * 4
                    pixels[to] = data[from + 2]
                    pixels[to + 1] = data[from + 1]
                    pixels[to + 2] = data[from]
                    pixels[to + 3] = 255
                }
            }
        }
        return buffer
    }

    private func numbers(_ tensor: Check.Tensor) throws -> [Double] {
        let data = try bytes(tensor)
        return try data.withUnsafeBytes { source -> [Double] in
            switch tensor.dtype {
            case "float32":
                return (0..<data.count / 4).map {
                    Double(Float(bitPattern: UInt32(littleEndian: source.loadUnaligned(fromByteOffset: $0 * 4, as: UInt32.self))))
                }
            case "int32":
                return (0..<data.count / 4).map {
                    Double(Int32(littleEndian: source.loadUnaligned(fromByteOffset: $0 * 4, as: Int32.self)))
                }
            default:
                throw CheckError(description: "\(tensor.file) is \(tensor.dtype)")
            }
        }
    }

    // MARK: - What the model gives

    private func values(of output: Check.Output, name: String, in result: MLFeatureProvider) throws -> [Double] {
        guard output.kind == "classes" else {
            guard let array = result.featureValue(for: name)?.multiArrayValue else {
                throw CheckError(description: "there is no output \(name)")
            }
            return try values(of: array)
        }
        guard let labels = output.labels, let table = result.featureValue(for: output.values ?? "")?.dictionaryValue else {
            throw CheckError(description: "there is no dictionary for \(name)")
        }
        let found = try labels.map { label -> Double in
            guard let value = table[label.key] else { throw CheckError(description: "\(name) has no label \(label)") }
            return value.doubleValue
        }
        let chosen = result.featureValue(for: output.label ?? "")
        let key = chosen?.type == .int64 ? AnyHashable(chosen?.int64Value ?? 0) : AnyHashable(chosen?.stringValue ?? "")
        guard table[key]?.doubleValue == found.max() else {
            throw CheckError(description: "label \(key) of \(name) has not the largest value")
        }
        return found
    }

    /// The values of an array in C order, whatever its strides.
    private func values(of array: MLMultiArray) throws -> [Double] {
        let shape = array.shape.map(\.intValue)
        let strides = array.strides.map(\.intValue)
        let read: (Int) -> Double
        switch array.dataType {
        case .float32:
            let pointer = array.dataPointer.assumingMemoryBound(to: Float.self)
            read = { Double(pointer[$0]) }
        case .double:
            let pointer = array.dataPointer.assumingMemoryBound(to: Double.self)
            read = { pointer[$0] }
        case .int32:
            let pointer = array.dataPointer.assumingMemoryBound(to: Int32.self)
            read = { Double(pointer[$0]) }
        case .float16:
            let pointer = array.dataPointer.assumingMemoryBound(to: UInt16.self)
            read = { Self.half(pointer[$0]) }
        default:
            throw CheckError(description: "an output is of type \(array.dataType.rawValue)")
        }
        var found: [Double] = []
        found.reserveCapacity(array.count)
        var index = [Int](repeating: 0, count: shape.count)
        for _ in 0..<array.count {
            found.append(read(zip(index, strides).reduce(0) { $0 + $1.0 * $1.1 }))
            var axis = shape.count - 1
            while axis >= 0 {
                index[axis] += 1
                if index[axis] < shape[axis] { break }
                index[axis] = 0
                axis -= 1
            }
        }
        return found
    }

    /// IEEE half precision; Swift's Float16 is not there on Intel Macs.
    private static func half(_ bits: UInt16) -> Double {
        let sign = bits & 0x8000 == 0 ? 1.0 : -1.0
        let exponent = Int((bits >> 10) & 0x1f)
        let fraction = Double(bits & 0x3ff)
        switch exponent {
        case 0: return sign * fraction * pow(2, -24)
        case 31: return fraction == 0 ? sign * Double.infinity : .nan
        default: return sign * (1 + fraction / 1024) * pow(2, Double(exponent - 15))
        }
    }
}

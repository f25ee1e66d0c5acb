// In an Xcode job: add this file and CoreMLCheck.swift to a test target, and the check folder to its resources (as a
// folder reference). With the package among the resources, too, Xcode compiles it to MODEL.mlmodelc.

import XCTest

final class CoreMLCheckTests: XCTestCase {
    func testEveryComputeUnit() throws {
        let bundle = Bundle(for: Self.self)
        let folders = bundle.urls(forResourcesWithExtension: "check", subdirectory: nil) ?? []
        let folder = folders.first ?? URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        let stem = folder.deletingPathExtension().lastPathComponent
        let compiled = bundle.url(forResource: stem, withExtension: "mlmodelc")
        for row in try CoreMLCheck(folder: folder, package: compiled).run() {
            XCTAssertTrue(row.passed, "\(row)")
        }
    }
}

// On a Mac: swiftc CoreMLCheck.swift main.swift -o check && ./check [FOLDER [PACKAGE]]

import Foundation

let arguments = CommandLine.arguments.dropFirst().map { URL(fileURLWithPath: $0) }
let folder = arguments.first ?? URL(fileURLWithPath: FileManager.default.currentDirectoryPath)
do {
    let rows = try CoreMLCheck(folder: folder, package: arguments.count > 1 ? arguments[1] : nil).run()
    rows.forEach { print($0) }
    exit(rows.allSatisfy(\.passed) ? 0 : 1)
} catch {
    print("\(error)")
    exit(2)
}

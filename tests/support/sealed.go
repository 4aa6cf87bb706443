// Checks a seal with the library of Go's checksum database, and prints the proofs that it makes of
// the same tiles: sealed FOLDER KEY NUMBER...
package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type reader struct{ folder string }

func (r reader) Height() int { return 8 }

func (r reader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var found [][]byte
	for _, tile := range tiles { // Go's paths name the height, those of C2SP do not
		path := strings.TrimPrefix(tile.Path(), "tile/8/")
		hashes, err := os.ReadFile(filepath.Join(r.folder, "tile", path))
		if err != nil {
			return nil, err
		}
		found = append(found, hashes)
	}
	return found, nil
}

func (r reader) SaveTiles([]tlog.Tile, [][]byte) {}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func show(proof []tlog.Hash) {
	for _, hash := range proof {
		fmt.Print(" ", base64.StdEncoding.EncodeToString(hash[:]))
	}
	fmt.Println()
}

func main() {
	folder := os.Args[1]
	signed := must(os.ReadFile(filepath.Join(folder, "checkpoint")))
	key := must(note.NewVerifier(os.Args[2]))
	lines := strings.Split(must(note.Open(signed, note.VerifierList(key))).Text, "\n")
	size := must(strconv.ParseInt(lines[1], 10, 64))
	root := must(tlog.ParseHash(lines[2]))
	tiles := tlog.TileHashReader(tlog.Tree{N: size, Hash: root}, reader{folder})
	for _, word := range os.Args[3:] {
		number := must(strconv.ParseInt(word, 10, 64))
		leaf := must(tiles.ReadHashes([]int64{tlog.StoredHashIndex(0, number)}))[0]
		record := must(tlog.ProveRecord(size, number, tiles))
		must(0, tlog.CheckRecord(record, size, root, number, leaf))
		fmt.Print("inclusion")
		show(record)
		old := must(tlog.TreeHash(number, tiles))
		tree := must(tlog.ProveTree(size, number, tiles))
		must(0, tlog.CheckTree(tree, size, root, number, old))
		fmt.Print("consistency")
		show(tree)
	}
}

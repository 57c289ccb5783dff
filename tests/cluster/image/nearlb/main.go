// SPDX-License-Identifier: Apache-2.0

// Command nearlb makes the tarball of nearlb's image, with the files and the configuration that manifests/Dockerfile gives it.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nearlb/nearlb/tests/cluster/image"
)

func main() {
	dockerfile := flag.String("dockerfile", "manifests/Dockerfile", "what the image is to be like")
	program := flag.String("program", "bin/image/nearlb", "the program, as make build TAGS=image built it")
	name := flag.String("name", "nearlb:latest", "of the image")
	version := flag.String("version", "unknown", "of the program")
	arch := flag.String("arch", "", "of the program (default: this machine's)")
	out := flag.String("out", "bin/nearlb.tar", "the tarball")
	flag.Parse()
	made, err := image.FromDockerfile(*dockerfile, *name, *program, *version)
	if made.Arch = *arch; err == nil {
		err = made.Write(*out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

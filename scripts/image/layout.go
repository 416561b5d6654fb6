// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"time"
)

// image is one image, for one or several architectures.
type image struct {
	name     string
	variants []variant
}

// variant is an image for one architecture.
type variant struct {
	arch   string
	layers []*layer
	run    runConfig
}

// runConfig is how a container of the image runs, unless told otherwise.
type runConfig struct {
	User       string            `json:"User,omitempty"`
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	Cmd        []string          `json:"Cmd,omitempty"`
	WorkingDir string            `json:"WorkingDir,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// The documents of the OCI image format, as far as they are used here (image-spec v1.1).
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Platform    *platform         `json:"platform,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	}
	index struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Manifests     []descriptor `json:"manifests"`
	}
	manifest struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}
	imageConfig struct {
		Created      time.Time `json:"created"`
		Architecture string    `json:"architecture"`
		OS           string    `json:"os"`
		Config       runConfig `json:"config"`
		RootFS       struct {
			Type    string   `json:"type"`
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	// dockerManifest is an entry of manifest.json, which old versions of `docker load` want. It can name one architecture only.
	dockerManifest struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
)

const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func (i *image) architectures() (archs []string) {
	for _, v := range i.variants {
		archs = append(archs, v.arch)
	}
	return archs
}

// writeLayout writes the image as the tar of an OCI image layout and returns the digest that a registry would know it by.
func (i *image) writeLayout(w io.Writer, tag string, created time.Time) (string, error) {
	files := tree{}
	put := func(media string, b blob) descriptor {
		files[blobPath(b.digest)] = entry{mode: 0o644, data: b.data}
		return descriptor{MediaType: media, Digest: b.digest, Size: len(b.data)}
	}
	archs := index{SchemaVersion: 2, MediaType: mediaIndex}
	docker := []dockerManifest{}
	for n, v := range i.variants {
		m := v.manifest(put, created)
		d := put(mediaManifest, newBlob(encode(m)))
		d.Platform = &platform{Architecture: v.arch, OS: "linux"}
		archs.Manifests = append(archs.Manifests, d)
		if v.arch == runtime.GOARCH || n == 0 {
			docker = []dockerManifest{m.docker(i.name + ":" + tag)}
		}
	}
	whole := put(mediaIndex, newBlob(encode(archs)))
	whole.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          i.name + ":" + tag,
	}
	files["oci-layout"] = entry{mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	files["index.json"] = entry{mode: 0o644, data: encode(index{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []descriptor{whole}})}
	files["manifest.json"] = entry{mode: 0o644, data: encode(docker)}
	return whole.Digest, files.writeTar(w, created)
}

// manifest puts the parts of a variant and returns what names them.
func (v variant) manifest(put func(media string, b blob) descriptor, created time.Time) manifest {
	config := imageConfig{Created: created, Architecture: v.arch, OS: "linux", Config: v.run}
	config.RootFS.Type = "layers"
	m := manifest{SchemaVersion: 2, MediaType: mediaManifest}
	for _, l := range v.layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		m.Layers = append(m.Layers, put(mediaLayer, l.blob))
	}
	m.Config = put(mediaConfig, newBlob(encode(config)))
	return m
}

func (m manifest) docker(ref string) dockerManifest {
	d := dockerManifest{Config: blobPath(m.Config.Digest), RepoTags: []string{ref}}
	for _, l := range m.Layers {
		d.Layers = append(d.Layers, blobPath(l.Digest))
	}
	return d
}

func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

// encode cannot fail: the documents are strings, numbers and times of this century.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

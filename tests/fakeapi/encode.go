// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// magic begins every object in protobuf (apimachinery, serializer/protobuf).
const magic = "k8s\x00"

// encoding is how a client wants its answer.
type encoding struct {
	protobuf bool
	metadata bool // PartialObjectMetadata instead of whole objects
}

// negotiate takes the first of what the client accepts that there is. Tables are not made.
func negotiate(accept string) (encoding, bool) {
	for clause := range strings.SplitSeq(accept, ",") {
		media, parameters, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		as := parameters["as"]
		e := encoding{protobuf: media == runtime.ContentTypeProtobuf, metadata: as == "PartialObjectMetadata" || as == "PartialObjectMetadataList"}
		if (e.protobuf || media == runtime.ContentTypeJSON || media == "*/*") && (as == "" || e.metadata) {
			return e, true
		}
	}
	return encoding{}, accept == ""
}

func (e encoding) contentType(stream bool) string {
	switch {
	case e.protobuf && stream:
		return runtime.ContentTypeProtobuf + ";stream=watch"
	case e.protobuf:
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// as is the kind that the client gets.
func (e encoding) as(k kind) schema.GroupVersionKind {
	if e.metadata {
		return metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
	}
	return k.GroupVersionKind
}

// object is one object on its own.
func (e encoding) object(k kind, o *entry) ([]byte, error) {
	raw, err := e.raw(k, o)
	if err != nil || !e.protobuf {
		return raw, err
	}
	return envelope(e.as(k), raw)
}

// raw is an object as it stands in a list: in protobuf without its kind.
func (e encoding) raw(k kind, o *entry) ([]byte, error) {
	if e.protobuf && !e.metadata && o.meta.ResourceVersion == version(o.version) {
		return o.raw, nil
	}
	meta := *o.meta
	meta.ResourceVersion = version(o.version)
	if e.metadata {
		partial := &metav1.PartialObjectMetadata{ObjectMeta: meta}
		if e.protobuf {
			return partial.Marshal()
		}
		partial.SetGroupVersionKind(e.as(k))
		return json.Marshal(partial)
	}
	typed, err := decode(k, o.raw)
	if err != nil {
		return nil, err
	}
	*typed.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta) = meta
	if e.protobuf {
		return typed.Marshal()
	}
	typed.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return json.Marshal(typed)
}

func decode(k kind, raw []byte) (marshaler, error) {
	o, err := Types.New(k.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	typed, ok := o.(marshaler)
	if !ok {
		return nil, fmt.Errorf("decode %s: it has no protobuf", k.name)
	}
	return typed, typed.Unmarshal(raw)
}

// bookmark is an object that has nothing but a version, and the mark of the end of a streamed list.
func (e encoding) bookmark(k kind, at uint64, initialEnd bool) ([]byte, error) {
	meta := metav1.ObjectMeta{ResourceVersion: version(at)}
	if initialEnd {
		meta.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	empty, err := Types.New(k.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	*empty.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta) = meta
	raw, err := empty.(marshaler).Marshal()
	if err != nil {
		return nil, err
	}
	return e.object(k, &entry{meta: &meta, version: at, raw: raw})
}

// list is objects with the version of all of them.
func (e encoding) list(k kind, objects []*entry, meta metav1.ListMeta) ([]byte, error) {
	as := e.as(k)
	as.Kind += "List"
	if !e.protobuf {
		return e.listJSON(k, as, objects, meta)
	}
	head, err := meta.Marshal()
	if err != nil {
		return nil, err
	}
	var out []byte
	out = appendField(out, 1, head)
	for _, o := range objects {
		raw, err := e.raw(k, o)
		if err != nil {
			return nil, err
		}
		out = appendField(out, 2, raw)
	}
	return envelope(as, out)
}

func (e encoding) listJSON(k kind, as schema.GroupVersionKind, objects []*entry, meta metav1.ListMeta) ([]byte, error) {
	out := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{ListMeta: meta, Items: make([]json.RawMessage, 0, len(objects))}
	out.APIVersion, out.Kind = as.ToAPIVersionAndKind()
	for _, o := range objects {
		raw, err := e.raw(k, o)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, raw)
	}
	return json.Marshal(out)
}

// appendField adds a field of bytes.
func appendField(out []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), value)
}

// envelope says the kind of what is encoded in protobuf.
func envelope(as schema.GroupVersionKind, raw []byte) ([]byte, error) {
	unknown := runtime.Unknown{Raw: raw}
	unknown.APIVersion, unknown.Kind = as.ToAPIVersionAndKind()
	out := make([]byte, len(magic)+unknown.Size())
	copy(out, magic)
	_, err := unknown.MarshalTo(out[len(magic):])
	return out, err
}

// frame is one event of a watch.
func (e encoding) frame(kind apiwatch.EventType, object []byte) ([]byte, error) {
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}
	if !e.protobuf {
		line, err := json.Marshal(event)
		return append(line, '\n'), err
	}
	out := make([]byte, 4+event.Size())
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	_, err := event.MarshalTo(out[4:])
	return out, err
}

// status is an error as an object.
func (e encoding) status(status metav1.Status) ([]byte, error) {
	as := schema.GroupVersionKind{Version: "v1", Kind: "Status"}
	status.Status = metav1.StatusFailure
	if !e.protobuf {
		status.SetGroupVersionKind(as)
		return json.Marshal(status)
	}
	raw, err := status.Marshal()
	if err != nil {
		return nil, err
	}
	return envelope(as, raw)
}

func version(v uint64) string { return strconv.FormatUint(v, 10) }

// parseVersion reads a resourceVersion; "" is 0.
func parseVersion(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("resourceVersion: invalid value: " + strconv.Quote(text))
	}
	return v, nil
}

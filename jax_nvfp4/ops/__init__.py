"""The operations, one file a family: public function, shape rule, custom call, batching rule, sharding rule."""

// The part of Metal that native/metal/device.mm uses, as Apple documents it: to check the file where there is no SDK.
#pragma once

#import <Foundation/Foundation.h>

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) { return MTLSize{width, height, depth}; }

typedef enum : NSUInteger { MTLResourceStorageModeShared = 0 } MTLResourceOptions;
typedef enum : NSUInteger { MTLLanguageVersion3_0 = (3 << 16) + 0 } MTLLanguageVersion;
typedef enum : long { MTLMathModeSafe = 0, MTLMathModeRelaxed = 1, MTLMathModeFast = 2 } MTLMathMode;
typedef enum : long { MTLGPUFamilyApple7 = 1007, MTLGPUFamilyMac2 = 2002 } MTLGPUFamily;
typedef enum : NSUInteger { MTLCommandBufferStatusCompleted = 4, MTLCommandBufferStatusError = 5 } MTLCommandBufferStatus;

@interface MTLCompileOptions : NSObject
@property(nonatomic) MTLLanguageVersion languageVersion;
@property(nonatomic) bool fastMathEnabled;
@property(nonatomic) MTLMathMode mathMode __attribute__((availability(macos, introduced = 15.0)));
@end

@protocol MTLFunction
@end

@protocol MTLLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString*)name;
@end

@protocol MTLComputePipelineState
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@end

@protocol MTLBuffer
- (void*)contents;
@property(readonly) NSUInteger length;
@end

@protocol MTLEvent
@end

@protocol MTLSharedEvent <MTLEvent>
@end

@protocol MTLComputeCommandEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)endEncoding;
@end

@protocol MTLCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(unsigned long long)value;
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(unsigned long long)value;
- (void)commit;
- (void)waitUntilCompleted;
@property(readonly) MTLCommandBufferStatus status;
@property(readonly) NSError* error;
@end

@protocol MTLCommandQueue
- (id<MTLCommandBuffer>)commandBuffer;
@end

@protocol MTLDevice
@property(readonly) NSString* name;
- (bool)supportsFamily:(MTLGPUFamily)family;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLSharedEvent>)newSharedEvent;
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error;
@end

extern "C" id<MTLDevice> MTLCreateSystemDefaultDevice(void);
